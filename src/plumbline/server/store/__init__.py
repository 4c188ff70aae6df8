"""Keep responses, conversations and chat completions, so that later requests can refer to them."""
