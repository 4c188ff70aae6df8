"""Parse model output into events, and render it back, for every dialect."""
