"""Procedural clips with sound, and the training of the small models that are shipped with them."""
