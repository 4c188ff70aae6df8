"""Compare the answers of a server that runs the scripted checkpoint with its scripts (`plumbline compare`)."""

from plumbline_conformance.exact.script_trial import run_exact

__all__ = ["run_exact"]
