"""Describe the dialects of the model families as data, one module for each group of related families."""
