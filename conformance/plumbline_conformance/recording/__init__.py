"""Write and read recordings, and redact credentials in them."""
