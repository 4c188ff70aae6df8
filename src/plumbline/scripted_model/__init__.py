"""A tiny checkpoint that has learned written answers by heart, so that exact outputs can be demanded of any server."""
