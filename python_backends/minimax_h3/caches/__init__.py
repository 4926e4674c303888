"""Work that several steps or requests share."""
