"""Read the names of models on the hub, as people copy them from other tools and from addresses.

OWNER/NAME                    the model; of a repository with GGUF files only, one of them
OWNER/NAME:Q4_K_M             the GGUF file of a quantisation
OWNER/NAME:FILE.gguf          a GGUF file by its path
OWNER/NAME@REVISION           a branch, tag or commit instead of main; also before the colon
hf.co/…, https://huggingface.co/…/resolve/main/FILE.gguf       the same as addresses
"""

from __future__ import annotations

import re

import msgspec

__all__ = ["HubName", "read_name"]

_HOSTS = re.compile(r"(?:hf://|(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/)")
_ADDRESS = re.compile(
    r"(?P<repository>[^/]+/[^/]+)/(?:tree|blob|resolve)/(?P<revision>[^/]+)(?:/(?P<part>.+))?"
)
_NAME = re.compile(
    r"(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?(?::(?P<part>[^\s:]+))?", re.ASCII
)
_LONGEST = 500
"""Characters of a name."""


class HubName(msgspec.Struct, frozen=True):
    """A model on the hub."""

    repository: str
    """OWNER/NAME."""
    part: str = ""
    """A GGUF file or its quantisation; empty for the whole model."""
    revision: str = ""
    """A branch, tag or commit; empty for the main branch."""

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.repository}{revision}{f':{self.part}' if self.part else ''}"


def read_name(text: str) -> HubName | None:
    """Return what a text names on the hub, or None if it cannot name anything there.

    >>> read_name("https://huggingface.co/Qwen/Qwen3-0.6B-GGUF/blob/main/Qwen3-0.6B-Q8_0.gguf")
    HubName(repository='Qwen/Qwen3-0.6B-GGUF', part='Qwen3-0.6B-Q8_0.gguf', revision='main')
    >>> read_name("./models/qwen")
    """
    text = text.strip()
    if len(text) > _LONGEST or text.startswith((".", "/", "~")):
        return None
    text, hosts = _HOSTS.subn("", text, count=1)
    text = text.partition("?")[0].rstrip("/")
    found = (_ADDRESS.fullmatch(text) if hosts else None) or _NAME.fullmatch(text)
    if found is None or not all(set(each) - {"."} for each in found["repository"].split("/")):
        return None
    return HubName(found["repository"], found["part"] or "", found["revision"] or "")
