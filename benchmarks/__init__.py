"""Benchmarks: micro (pytest-benchmark), serving and start-up, with what they are compared with in the same run."""
