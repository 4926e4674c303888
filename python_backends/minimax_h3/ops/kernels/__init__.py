"""Fused kernels in the Triton language; imported only where they are wanted."""
