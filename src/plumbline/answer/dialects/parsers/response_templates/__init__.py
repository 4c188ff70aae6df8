"""Parse answers by the response template of a tokenizer, whose delimiters are patterns."""
