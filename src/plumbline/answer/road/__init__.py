"""Turn a request into the events of its answer: render, generate, assemble, parse, count."""
