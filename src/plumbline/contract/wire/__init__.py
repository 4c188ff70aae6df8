"""Decode requests, and write errors, replies and server-sent events.

This package is hand-written and knows HTTP, but no models and no engines. The generated modules import from it, and the
server builds on both. The package re-exports nothing: import from its modules.
"""
