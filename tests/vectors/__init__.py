"""Make the vectors of `conformance/vectors` and test our server by them."""
