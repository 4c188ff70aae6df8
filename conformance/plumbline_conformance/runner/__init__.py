"""Run scenarios against a server, within a budget."""
