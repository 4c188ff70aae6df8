"""The zoo: servers that break one rule each, as changes to what the reference said."""

from __future__ import annotations

from mutants_basic import BASICS
from mutants_chat import CHAT
from mutants_clauses import CLAUSES
from mutants_completions import COMPLETIONS
from mutants_identity import IDENTITY
from mutants_laws import LAWS
from mutants_members import MEMBERS
from mutants_prompts import PROMPTS
from mutants_responses import RESPONSES
from mutants_state import STATE
from mutations import Mutant

import plumbline_conformance.checks  # noqa: F401 - registers the suite

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = [
    *BASICS,
    *LAWS,
    *CHAT,
    *RESPONSES,
    *COMPLETIONS,
    *STATE,
    *MEMBERS,
    *IDENTITY,
    *PROMPTS,
    *CLAUSES,
]
