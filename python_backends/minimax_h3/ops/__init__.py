"""Elementwise reference operations; fused kernels name the function here that they equal."""
