"""Mutants of answers of the Responses API."""
