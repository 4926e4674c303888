"""One class per Triton model."""
