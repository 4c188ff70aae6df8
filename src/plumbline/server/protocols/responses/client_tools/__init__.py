"""Tools of Responses that the client runs: a shell on its machine, and patches of its files."""
