"""Start the server, listen, and stop gracefully, in one process or in several."""
