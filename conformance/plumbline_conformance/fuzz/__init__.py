"""Fuzz a server with requests generated from the contract, and shrink counterexamples."""
