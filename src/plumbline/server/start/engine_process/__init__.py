"""Run an engine in a process of its own, which is started again when it dies.

The server's process has an `EngineProcess`, which starts `python -m ….engine_process.process` and watches it, and
a `RemoteEngine`, which uses it. They share a private folder:

    engine.sock       the socket of the engine
    engine.history    why its processes have ended, for all that use the engine
    engine.journal    what it is computing, for its keeper
    text/             tokenizer and chat template of a GGUF file
"""
