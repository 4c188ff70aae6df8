"""One server for the faults that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .running import Running, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("server")) as found:
        yield found
