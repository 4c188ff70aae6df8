"""Numbers of JSON Schemas: exactly as the client wrote them, or refused."""
