"""Dated sets of checks, one id a line. A set that was published only grows."""
