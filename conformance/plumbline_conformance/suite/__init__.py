"""Define scenarios and checks, their contract and rules, and the choice of checks for a run."""
