"""Draw the next token of every running request, with grammar masks and log-probabilities."""
