"""Limits on what clients may use, above those of each request."""
