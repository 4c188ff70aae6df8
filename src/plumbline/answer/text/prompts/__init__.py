"""Encode prompts of models that have no chat template."""
