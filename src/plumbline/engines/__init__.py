"""Engines behind one port: the native engine, transformers, scripts of tokens; and what they share."""
