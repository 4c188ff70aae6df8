"""Makes the generator importable: it lives beside the contract, not in a package of ours."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "openapi"))
