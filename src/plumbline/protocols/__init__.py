"""One module per API surface: a reader (request to turn) and a writer (events to wire events), both without I/O."""
