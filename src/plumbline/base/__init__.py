"""Provide what every other package may use: worker processes, exact numbers, facts from model files.

What belongs here knows nothing of the API, of conversations or of engines.
"""
