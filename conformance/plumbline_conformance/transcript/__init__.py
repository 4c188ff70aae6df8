"""Store exchanges, parse server-sent events, and fold answers."""
