"""Run responses, in the foreground or the background, load what they continue, and store them."""
