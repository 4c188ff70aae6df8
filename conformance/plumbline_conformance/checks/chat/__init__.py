"""Scenarios and checks of chat completions."""
