"""Stages as Triton models: the only package that talks to the Python backend."""
