"""Programs that use the server with unmodified clients of others (`nox -s clients`)."""
