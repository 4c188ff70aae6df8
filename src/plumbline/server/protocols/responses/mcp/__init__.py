"""MCP servers in Responses: their declaration in a request, their items in the input and in the output."""
