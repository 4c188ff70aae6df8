"""Measure how fast a server of the OpenAI API answers under load, or compare two in turn."""
