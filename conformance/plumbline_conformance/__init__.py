"""The judge: holds any OpenAI-compatible server against the contract."""
