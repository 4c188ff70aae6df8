"""The pocket model: data, tokenizer, training and evaluation, all written here."""
