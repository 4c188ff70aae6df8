"""Start servers of every kind for tests, and clients that see every message."""
