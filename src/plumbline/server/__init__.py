"""Serve the API over HTTP: the Litestar app, operation handlers, API keys, metrics, start and shutdown."""
