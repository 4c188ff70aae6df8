"""Implement the operations of the contract, one module per group."""
