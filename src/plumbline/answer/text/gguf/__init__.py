"""The text side of a GGUF file: its tokenizer and its chat templates."""
