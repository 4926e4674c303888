"""Attention backends behind one protocol, chosen once by stated capability."""
