"""Measure servers over HTTP: our own, its engines, and others on the same weights."""
