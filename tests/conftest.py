"""What all tests share: how often properties are tried, and coroutines as tests."""

from __future__ import annotations

import asyncio
import atexit
import gc
import inspect
import os
import shutil
import sys
import tempfile
from pathlib import Path

import certifi
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# Every folder of tests may import `support` (helpers) and `generate` (the code generator beside the contract).
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "openapi")]

from support.laws import EXPLORED  # noqa: E402
from support.progress import Progress  # noqa: E402

from plumbline.server.start.garbage import THRESHOLDS  # noqa: E402

# Collecting the tests makes no garbage, and collections among all of them took a sixth of the time.
gc.disable()

if "PYTEST_XDIST_WORKER" in os.environ:
    # Each worker of pytest-xdist has one core to itself; more threads of torch would wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Python would take five seconds to free all tests one by one. Called last, as it is registered first.
    atexit.register(os._exit, 0)

# Servers that tests start keep responses in a folder of the run, not in the user's.
HOME = tempfile.mkdtemp(prefix="plumbline-tests-")
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
os.environ["XDG_DATA_HOME"] = HOME

# Each client of HTTP that is made loads all certificates, in 25 ms, and no test speaks to a server outside. One
# certificate serves as well.
CERTIFICATES = Path(HOME, "certificates.pem")
CERTIFICATES.write_text(
    certifi.contents().partition("-----END CERTIFICATE-----\n")[0] + "-----END CERTIFICATE-----\n"
)
os.environ["SSL_CERT_FILE"] = str(CERTIFICATES)

# Deadlines measure the machine, not the law. The same examples run every time, so that a new failure comes from the
# change under test; `nox -s properties` draws new ones.
settings.register_profile(
    "same",
    deadline=None,
    max_examples=20,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "explore",
    settings.get_profile("same"),
    max_examples=EXPLORED or 1,
    derandomize=False,
    print_blob=True,
)
settings.load_profile("explore" if EXPLORED else "same")
if not EXPLORED:
    # hypothesis would also draw the texts and numbers that stand in all modules that are imported: it would parse 500
    # files in each process (2 s of CPU), and the examples would differ between the processes of pytest-xdist.
    providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Show the progress instead of dots, unless `-v` asks for a line for each test."""
    reporter = config.pluginmanager.getplugin("terminalreporter")  # A worker of pytest-xdist has none.
    if reporter is not None and config.get_verbosity() <= 0 and not config.option.collectonly:
        config.pluginmanager.register(Progress(reporter), "progress")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep the modules and tests, which live as long as the process, out of garbage collection."""
    atexit.register(gc.unfreeze)  # Otherwise nanobind reports leaks at the end of the process.
    gc.freeze()  # Without a collection before, which would find no garbage in half a second.
    gc.set_threshold(*THRESHOLDS)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
