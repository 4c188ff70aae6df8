"""Claim names among the processes that serve the same clients."""
