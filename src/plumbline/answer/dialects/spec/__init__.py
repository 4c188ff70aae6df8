"""Describe dialects as data: markers, call formats, how a template controls thinking."""
