"""Train the pocket model: generate its data, train its tokenizer and network, evaluate it.

The wheel does not contain this package.
"""
