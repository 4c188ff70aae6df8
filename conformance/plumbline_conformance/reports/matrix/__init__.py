"""Compare reports of several servers: a table of rules and checks, pages, and the evidence for each cell."""
