"""List the suites of tests: where they come from, and which of their files are run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["HERE", "SUITES", "Suite"]

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Suite:
    """The tests of one server."""

    name: str
    title: str
    archive: str
    """A requirement with an exact release; its source archive on PyPI has the tests."""
    within: str
    """The folder of the archive from which the paths of `files` and `helpers` count."""
    files: tuple[str, ...]
    """The files of tests that are run."""
    helpers: tuple[str, ...] = ()
    """Files that the tests import, and configuration of pytest."""
    server: tuple[str, ...] | None = None
    """Options of one server of ours for all tests; None if the tests start servers themselves, by a stand-in."""
    build: Mapping[str, str] = field(default_factory=dict)
    """Environment variables with which pip reads the metadata of the archive."""

    @property
    def stand_ins(self) -> Path:
        """Return the folder with what the tests import in place of their own server."""
        return HERE / "stand_ins" / self.name

    @property
    def expected(self) -> Path:
        """Return the file with the outcomes that are expected."""
        return HERE / "expected" / f"{self.name}.toml"


_OPENAI = "tests/entrypoints/openai"

SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            name="llama-cpp",
            title="llama.cpp's tests of Messages",
            archive="llama_cpp_python==0.3.36",
            within="vendor/llama.cpp/tools/server/tests",
            files=("unit/test_compat_anthropic.py",),
            helpers=("conftest.py", "utils.py", "pytest.ini"),
            # The tests ask for the model `test`; llama-server answers whatever the name.
            server=("--served-model-name=test",),
        ),
        Suite(
            name="vllm",
            title="vLLM's HTTP tests",
            archive="vllm==0.32.0",
            within="",
            files=(
                "tests/entrypoints/anthropic/test_messages.py",
                *(
                    f"{_OPENAI}/chat_completion/test_{name}.py"
                    for name in (
                        *("chat", "chat_completion", "chat_echo", "chat_logit_bias_validation"),
                        *("completion_with_function_calling", "enable_force_include_usage"),
                        *("include_reasoning", "logprob_token_ids", "root_path", "thinking_token_budget"),
                    )
                ),
                *(
                    f"{_OPENAI}/completion/test_{name}.py"
                    for name in ("completion", "prompt_validation", "token_in_token_out")
                ),
                f"{_OPENAI}/models/test_models.py",
                *(
                    f"{_OPENAI}/responses/test_{name}.py"
                    for name in ("basic", "function_call", "simple", "stateful", "structured_output")
                ),
                *(
                    f"{_OPENAI}/test_{name}.py"
                    for name in ("chunked_prompt", "return_token_ids", "return_tokens_as_ids")
                ),
                "tests/entrypoints/serve/instrumentator/test_basic.py",
                "tests/entrypoints/serve/lora/test_lora_adapters.py",
                "tests/entrypoints/serve/tokenize/test_tokenization.py",
                *(
                    f"tests/tool_use/test_{name}.py"
                    for name in ("chat_completions", "parallel_tool_calls", "tool_calls")
                ),
            ),
            helpers=(
                "tests/__init__.py",
                "tests/entrypoints/__init__.py",
                "tests/entrypoints/conftest.py",
                "tests/entrypoints/anthropic/__init__.py",
                "tests/entrypoints/openai/__init__.py",
                f"{_OPENAI}/utils.py",
                f"{_OPENAI}/chat_completion/__init__.py",
                f"{_OPENAI}/completion/__init__.py",
                f"{_OPENAI}/models/__init__.py",
                f"{_OPENAI}/responses/__init__.py",
                f"{_OPENAI}/responses/conftest.py",
                "tests/entrypoints/serve/__init__.py",
                "tests/tool_use/__init__.py",
                "tests/tool_use/conftest.py",
                "tests/tool_use/utils.py",
            ),
            build={"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": "0.32.0"},
        ),
    )
}
"""By name."""
