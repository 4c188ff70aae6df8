"""Faults of servers as public issues describe them, and legal differences between servers, as changes of answers.

They are not derived from our source or our answers, so they show what derived faults do not.
"""

from field_faults.agents import AGENTS
from field_faults.agents_legal import AGENTS_LEGAL
from field_faults.bodies import BODIES
from field_faults.changes import Row
from field_faults.chat import CHAT
from field_faults.conversations import CONVERSATIONS
from field_faults.further_legal import FURTHER_LEGAL
from field_faults.items import ITEMS
from field_faults.later_legal import LATER_LEGAL
from field_faults.legal import LEGAL as FIRST_LEGAL
from field_faults.others import OTHERS
from field_faults.parts import PARTS
from field_faults.rare import RARE
from field_faults.requests import REQUESTS

__all__ = ["FAULTS", "LEGAL"]

FAULTS: tuple[Row, ...] = (*CHAT, *OTHERS, *RARE, *CONVERSATIONS, *PARTS, *AGENTS, *REQUESTS, *BODIES, *ITEMS)
LEGAL: tuple[Row, ...] = (*FIRST_LEGAL, *FURTHER_LEGAL, *AGENTS_LEGAL, *LATER_LEGAL)
