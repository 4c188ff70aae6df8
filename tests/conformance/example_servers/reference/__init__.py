"""A server that keeps every rule, written from the rules alone: what mutants are made from.

It has no model. It shares no code with `plumbline`, so that the suite is held against a second reading of the text,
and it has what our own server does not have yet: kept responses, custom tools, forced tools.
"""

from example_servers.reference.app import MODEL, application

__all__ = ["MODEL", "application"]
