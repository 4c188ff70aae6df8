"""How model families write reasoning and tool calls. Until the first dialect lands, all of an answer is text."""
