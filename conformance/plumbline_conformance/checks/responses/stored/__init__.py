"""Define the scenarios and checks of responses that a server keeps, and of conversations."""
