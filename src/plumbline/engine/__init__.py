"""The engine: token ids in, token chunks out; it knows nothing of JSON, chat, tools or HTTP."""
