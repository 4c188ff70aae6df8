"""What official clients make of recorded answers: they read the recorded bytes from a server on loopback.

The suite itself reads raw HTTP, because clients repair and retry. Whether they accept an answer is a question of its
own, and costs neither tokens nor requests: `claims` are what is claimed of it, `calls` finds the call that a user makes
for a request, `replay` serves the bytes, `openai_client` drives the client and `run` makes findings of what it did.
"""
