"""Render chat templates in a sandbox, as transformers does."""
