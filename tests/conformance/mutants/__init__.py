"""Define mutants: the reference server with one broken rule each, as changes of its transcripts."""

from __future__ import annotations

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from mutants.basic import BASICS
from mutants.chat.features import CHAT
from mutants.clauses import CLAUSES
from mutants.completions import COMPLETIONS
from mutants.effects import EFFECTS
from mutants.forms import FORMS
from mutants.further_rules import FURTHER_RULES
from mutants.identity import IDENTITY
from mutants.laws import LAWS
from mutants.members import MEMBERS
from mutants.messages import MESSAGES
from mutants.mutations import Mutant
from mutants.ordinary import ORDINARY
from mutants.prompts import PROMPTS
from mutants.responses.basics import RESPONSES
from mutants.responses.clauses import RESPONSE_CLAUSES
from mutants.responses.client_tools import CLIENT_TOOLS
from mutants.responses.mcp import MCP
from mutants.responses.members import RESPONSE_MEMBERS
from mutants.state import STATE
from mutants.sweeps import SWEEPS
from mutants.typed import TYPED

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = [
    *BASICS,
    *LAWS,
    *CHAT,
    *RESPONSES,
    *COMPLETIONS,
    *STATE,
    *FURTHER_RULES,
    *IDENTITY,
    *PROMPTS,
    *CLAUSES,
    *RESPONSE_CLAUSES,
    *EFFECTS,
    *MEMBERS,
    *RESPONSE_MEMBERS,
    *CLIENT_TOOLS,
    *MCP,
    *MESSAGES,
    *TYPED,
    *SWEEPS,
    *ORDINARY,
    *FORMS,
]
