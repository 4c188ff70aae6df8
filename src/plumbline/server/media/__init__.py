"""Load the files that requests name, within the operator's limits."""
