"""Talk to a model at the terminal: a client of the API like any other, and a server of its own if none runs.

It knows the API only, so it talks to any OpenAI-compatible server.
"""
