"""Makes the helpers beside these tests importable, and gives one good transcript of every scenario."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
