"""Run several API servers, each a process, in front of one engine.

The first process owns the engine and the hub, and starts the others (`supervisor`). Each API server (`process`) has the
application, tokenizer, templates and parsers of a server of its own; its engine is a `RemoteEngine`, its claims are
those of the hub. All accept connections from one listening socket.
"""
