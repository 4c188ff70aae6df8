"""Provide servers to judge: conforming, odd and hostile ones."""
