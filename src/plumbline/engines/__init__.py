"""Generate tokens behind one port: the native engine, transformers, scripted tokens, and the code that they share."""
