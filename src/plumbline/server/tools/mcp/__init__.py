"""Call the tools of MCP servers, with bounds on time, size and the hosts that are called."""
