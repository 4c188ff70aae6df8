"""Define scenarios and checks, the contract and rules behind them, and the choice of checks for a run."""
