"""Wrap the application in what every request passes: request ids, keys, CORS and forwarding."""
