"""Helpers of the tests: small models, scripts for engines, and clients that see every message."""
