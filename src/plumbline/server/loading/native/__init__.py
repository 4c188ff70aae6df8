"""Load models into our own engine."""
