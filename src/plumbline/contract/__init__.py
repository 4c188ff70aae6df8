"""Hold the contract as Python: types and routes generated from `openapi/`, and how JSON becomes them.

`_generated` is written by `openapi/generate` and never edited; `wire` decodes, checks and encodes its types.
"""
