"""The diffusion transformer over one packed sequence of text, sound and picture."""
