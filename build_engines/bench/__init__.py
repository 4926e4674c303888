"""`h3 bench`: how fast the transformer is, beside what the device could do and beside diffusers."""
