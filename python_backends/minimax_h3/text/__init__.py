"""Prompt to embeddings: tokenizer, presentation and the truncated text encoder."""
