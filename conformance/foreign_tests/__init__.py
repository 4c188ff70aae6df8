"""Run the tests of other servers against our server (`nox -s foreign`).

The tests come from source archives of PyPI, or from a folder, and nothing of them is committed. `suites` lists them,
`sources` fetches them, `stand_ins` has what they import in place of their own server, `plugin` runs inside their
pytest, `expected` compares their outcomes with the lists in `expected/`, and `page` writes the table in the docs.
"""
