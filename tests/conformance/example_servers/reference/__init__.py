"""The reference: a server without a model that keeps every rule. Mutants are changes of its transcripts.

It is written only from the rules and shares no code with `plumbline`, so the suite is tested against an independent
implementation. It also has features that our server lacks, such as stored responses.
"""

from example_servers.reference.app import MODEL, application

__all__ = ["MODEL", "application"]
