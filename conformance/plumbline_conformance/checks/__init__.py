"""The scenarios and checks, by API surface. Importing this package registers all of them."""

from plumbline_conformance.checks import chat, chat_stream, completions, errors, models, responses

__all__ = ["chat", "chat_stream", "completions", "errors", "models", "responses"]
