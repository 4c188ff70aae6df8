"""Responses: read requests into turns, write events as stream events and response objects."""
