"""Compare a server with the results of another one that has the same model (`plumbline compare`).

`samples` reads requests and results in the format of K2-Vendor-Verifier, `statistics` says how sure a difference is,
`causes` finds out why rows differ, `report` writes it, and `run` joins them.
"""
