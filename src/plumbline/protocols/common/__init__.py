"""Share fields, tool choice and output formats between the protocols."""
