"""Tools that the server executes for Responses, and the rounds of an answer that calls them."""
