"""Score a peer's parser, template engine, client or grammar by the vectors (`plumbline vectors`)."""

from plumbline_conformance.vectors.run import run_vectors

__all__ = ["run_vectors"]
