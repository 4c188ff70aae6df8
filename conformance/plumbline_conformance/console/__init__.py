"""Print to the terminal, and check output files before a run."""
