"""Convert messages to token ids and token ids to text: templates, tokenizers, detokenising, stop strings."""
