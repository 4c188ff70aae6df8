"""Contract to code: bundle the YAML, then write types, routes and the judge's copy from it."""
