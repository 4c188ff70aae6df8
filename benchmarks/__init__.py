"""Measure parsers, overhead, serving and start-up, each next to its baseline in the same run."""
