"""Run responses and remember them: what they continue, what is stored of them, and those in the background."""
