"""Load what the server serves from: the model, its engine, adapters, prompt templates and the store."""
