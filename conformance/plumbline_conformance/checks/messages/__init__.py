"""Check the Messages API."""
