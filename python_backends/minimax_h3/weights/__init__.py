"""Checkpoint files: which one is this, what is inside, and how it becomes our modules."""
