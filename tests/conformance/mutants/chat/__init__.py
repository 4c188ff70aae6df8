"""Mutants of answers of chat completions."""
