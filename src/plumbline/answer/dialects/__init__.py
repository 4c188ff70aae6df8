"""Describe how model families write reasoning and tool calls, and parse and render it."""
