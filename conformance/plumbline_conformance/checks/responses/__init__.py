"""Scenarios and checks of the Responses API."""
