"""Read JSON, Python literals and tag values from text that comes in pieces."""
