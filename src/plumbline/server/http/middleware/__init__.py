"""Wrap the application in middleware: request ids, keys, CORS and forwarding."""
