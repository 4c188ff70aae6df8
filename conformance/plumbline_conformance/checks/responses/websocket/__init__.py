"""Define the scenarios and checks of Responses over a WebSocket."""
