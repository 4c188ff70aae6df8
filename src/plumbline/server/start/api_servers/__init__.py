"""Run several API servers, each a process, in front of one engine.

The first process keeps the engine's process and owns the hub, and starts the others (`supervisor`). Each API server
(`process`) has its own application, tokenizer, templates and parsers; its engine is a `RemoteEngine`, and the hub keeps
its claims. All accept connections from one listening socket.
"""
