"""Terminal output, and the checks on output files before a run."""
