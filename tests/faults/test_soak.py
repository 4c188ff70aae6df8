"""A minute at saturation with random faults leaves nothing behind; `nox -s soak` takes an hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from .soak import soak


@pytest.mark.long
def test_a_minute_at_saturation_with_faults_leaves_nothing_behind(tmp_path: Path) -> None:
    soak(tmp_path, seconds=60.0, seed=1)
