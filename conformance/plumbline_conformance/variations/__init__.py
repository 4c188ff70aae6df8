"""Answer a client in every way that is legal, and find those that break it (`plumbline client`).

`script` has the answers, `formats` and `contract` the variations of their bytes and of their form, `cases` all of them
with those of the connection, `http` and `websocket` send them, and `run` runs a client's program for each.
"""
