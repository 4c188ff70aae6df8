"""Read JSON, Python literals and tag values from text that is still being written."""
