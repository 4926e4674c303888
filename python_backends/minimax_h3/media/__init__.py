"""Media files: H.264 and AAC writing, and checking what was written. PyAV stays in here."""
