"""Make the zoo of mutants importable, which proves the clauses of rules."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conformance"))
