"""Generate code from the contract: bundle the YAML, write types, routes and the judge's copy."""
