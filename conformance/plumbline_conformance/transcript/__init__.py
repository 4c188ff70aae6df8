"""Recorded exchanges, and a parser of server-sent events."""
