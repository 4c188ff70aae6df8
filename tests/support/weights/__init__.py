"""Small models of every kind with random weights, and what engines have to compute with them."""
