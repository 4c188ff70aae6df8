"""List models for `plumbline list`: those served, those downloaded, and all that can be served."""
