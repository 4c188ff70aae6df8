"""Generate the conversations that the pocket model learns from."""
