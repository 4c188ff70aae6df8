"""Requests that nobody would write: generated from the contract, shrunk to the smallest that breaks a server."""
