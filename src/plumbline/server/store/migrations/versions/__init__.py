"""List the revisions of the tables, the oldest first."""
