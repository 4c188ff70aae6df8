"""Let operators observe the server: metrics."""
