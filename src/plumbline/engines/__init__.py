"""Other engines behind the same port: transformers, scripted, null (and vLLM later)."""
