"""The seam between the generated types and the server: decoding, errors, replies, calls, SSE framing.

Everything here is hand-written, knows HTTP's vocabulary, and knows nothing of models or engines. The
generated modules import from it; the server builds on both. Import from the modules, not from this package:
it re-exports nothing, so that a reader of an import sees which part of the seam is meant.
"""
