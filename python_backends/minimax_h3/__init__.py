"""MiniMax-H3 generation, as a library behind Triton models."""
