"""Legacy completions: read requests into turns, write events as chunks and answers."""
