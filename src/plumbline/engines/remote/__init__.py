"""Serve an engine to other processes over a Unix socket, and use one that another process serves."""
