"""Generate the data of the pocket model, train its tokenizer and network, and evaluate it."""
