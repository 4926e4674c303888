"""Offline tools: make, convert and verify checkpoints. Nothing of the server imports them."""
