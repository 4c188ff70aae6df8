"""Read the tools of a request: which may be called, and which are left out."""
