"""List models for `plumbline models`: those served, those downloaded, and all that can be served."""
