"""Triton kernels of Plumbline, each with a torch twin in the same file; this package imports nothing of ours."""
