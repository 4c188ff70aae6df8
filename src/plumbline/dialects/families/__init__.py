"""The dialects of the model families: data, one module for each group of relatives."""
