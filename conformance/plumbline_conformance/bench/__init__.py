"""Measure how fast a server of the OpenAI API answers under load, or compare two in turn."""

from plumbline_conformance.bench.run import Plan, run_bench

__all__ = ["Plan", "run_bench"]
