"""Implement the operations of the contract, a module for each group of them."""
