"""Judge any OpenAI-compatible server against the contract."""
