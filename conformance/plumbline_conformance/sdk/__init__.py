"""Let official clients read recorded answers from a server on loopback (`--sdk`).

The suite itself reads raw HTTP, because clients repair and retry. This package judges whether a client accepts an
answer, from the recording, without further requests: `calls` finds the method that sends a recorded request, `replay`
serves the recorded bytes, `openai_client` and `anthropic_client` drive the clients by what `driver` shares, `sums` adds
up streams and `run` collects the findings.
"""
