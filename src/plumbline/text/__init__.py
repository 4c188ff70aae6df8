"""Between messages and token ids: templates, tokenizers, detokenising, stop strings."""
