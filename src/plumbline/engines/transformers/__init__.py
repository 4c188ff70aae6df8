"""Serve any causal language model of Hugging Face transformers behind the port."""
