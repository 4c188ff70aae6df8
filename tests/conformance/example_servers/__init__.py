"""Servers to judge: good, odd and hostile ones."""
