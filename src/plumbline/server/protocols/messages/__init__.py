"""Messages, Anthropic's API: read requests into turns, write events as its events and answers."""
