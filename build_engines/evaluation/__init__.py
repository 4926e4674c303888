"""Measures clips: what is seen, what is heard, whether both agree and match what was asked for."""
