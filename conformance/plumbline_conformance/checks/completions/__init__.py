"""Define the scenarios and checks of legacy completions."""
