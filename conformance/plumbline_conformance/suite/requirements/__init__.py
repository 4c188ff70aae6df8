"""List the published sets of checks, one id a line. A set grows until the end of its month, then never changes."""
