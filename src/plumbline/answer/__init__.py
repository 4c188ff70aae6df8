"""Turn a conversation into tokens and tokens into events: templates, tokenizers, dialects, structured output, the road.

What belongs here knows messages, text and token ids. It uses the port to reach an engine, and can be used without HTTP,
without torch and without the API's types; those are in `plumbline.server` and `plumbline.engines`.
"""
