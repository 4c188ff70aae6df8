"""Promised forms: from what an API promises (a schema, a pattern, a call) to a grammar that an engine can hold."""
