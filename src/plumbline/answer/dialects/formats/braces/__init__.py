"""Calls in braces: reading them, and telling quotes that end a string from quotes inside it."""
