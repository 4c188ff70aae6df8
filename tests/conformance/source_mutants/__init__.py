"""Judge our server with faults in its source: `nox -s mutants -- source --seed N --count N`."""
