"""Serve the page at `/`: its files, the reference at `/docs`, and the routes that only the page uses."""
