"""Scenarios and checks of legacy completions."""
