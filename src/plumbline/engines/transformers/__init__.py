"""Implement the engine port with any causal language model of Hugging Face transformers."""
