"""Serve the API over HTTP: all from a connection to the port of the engine, and what operators set and observe."""
