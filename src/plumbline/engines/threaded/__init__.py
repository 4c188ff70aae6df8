"""Serve an engine core that steps synchronously: its requests, its thread, and what replaces it when it breaks."""
