"""Measure the delay that `plumbline watch` adds."""
