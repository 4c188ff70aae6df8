"""Score a peer's parser, template engine, client or grammar by the vectors (`plumbline vectors`)."""
