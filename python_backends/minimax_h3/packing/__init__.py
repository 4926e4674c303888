"""Latents to rows, the packed sequence, its positions, times and documents."""
