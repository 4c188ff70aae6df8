"""What all tests share: how often properties are tried, and coroutines as tests."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Every folder of tests may import `support` (helpers) and `generate` (the code generator beside the contract).
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "openapi")]

# Servers that tests start keep responses in a folder of the run, not in the user's.
os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="plumbline-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_DATA_HOME"], ignore_errors=True)

# Deadlines measure the machine, not the law. In CI the same examples run every time.
settings.register_profile(
    "plumbline",
    deadline=None,
    max_examples=60,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
# `nox -s properties` tries everything much longer.
settings.register_profile("long", settings.get_profile("plumbline"), max_examples=20_000)
settings.load_profile(os.environ.get("PLUMBLINE_PROFILE", "plumbline"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
