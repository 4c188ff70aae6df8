"""How model families write reasoning and tool calls, and the one parser that reads them all."""
