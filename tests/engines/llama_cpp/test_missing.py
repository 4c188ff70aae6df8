"""A llama.cpp that is missing or broken."""

from __future__ import annotations

import pytest

from plumbline.engines.llama_cpp.options import LlamaCppError, load_llama


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("No module named 'llama_cpp'", name="llama_cpp"), r"install llama-cpp-python`$"),
        (
            ModuleNotFoundError("No module named 'diskcache'", name="diskcache"),
            r"\(No module named 'diskcache'\)$",
        ),
        (ImportError("libgomp.so.1: cannot open"), "cannot be imported: libgomp.so.1"),
    ],
)
def test_the_start_says_what_is_missing(
    error: ImportError, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise error

    monkeypatch.setattr("importlib.import_module", fail)
    with pytest.raises(LlamaCppError, match=said):
        load_llama()
