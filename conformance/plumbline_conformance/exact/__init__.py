"""`plumbline exact`: a server with the scripted checkpoint owes exact answers, and is held to them."""

from plumbline_conformance.exact.run import run_exact

__all__ = ["run_exact"]
