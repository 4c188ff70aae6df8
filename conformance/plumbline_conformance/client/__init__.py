"""Send requests over HTTP and WebSockets. Only this package opens connections to a server under test."""
