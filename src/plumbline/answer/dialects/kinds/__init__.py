"""Implement the model dialect for plain text, for markers, for harmony and for response templates."""
