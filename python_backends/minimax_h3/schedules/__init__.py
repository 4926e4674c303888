"""Sigma schedules, the Euler step and the noise recipes."""
