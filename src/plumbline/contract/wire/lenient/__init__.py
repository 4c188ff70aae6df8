"""Rewrite requests that other servers accept into requests of this contract (`--lenient`)."""
