"""Implement the engine port with vLLM: its models, quantisations and parallelism, our grammars and API."""
