"""Run models with vLLM's engine behind the port: its models, quantisations and parallelism, our grammars and API."""
