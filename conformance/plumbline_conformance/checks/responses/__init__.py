"""Define the scenarios and checks of the Responses API."""
