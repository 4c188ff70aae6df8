"""Define the scenarios and checks of chat completions."""
