"""A stand-in for the hub: repositories of a folder, served as huggingface_hub asks for them."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_API = re.compile(r"/api/models/([^/]+/[^/?]+)(?:/(revision|tree)/([^/?]+))?(?:\?.*)?$")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/[^/]+/([^?]+)")


def commit_of(name: str) -> str:
    """Return the commit of a repository."""
    return hashlib.sha256(name.encode()).hexdigest()[:40]


class Hub:
    """Repositories by name, each a folder; what was asked; and files whose bytes are damaged on the way.

    With `pace`, files come in pieces of so many bytes, ten a second.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[str] = []
        self.ranges: list[str] = []
        self.pace = 0
        self.damaged: set[str] = set()
        self.gated: set[str] = set()
        self.url = ""

    def large(self, path: Path) -> bool:
        """Whether the hub keeps a file apart and knows its hash."""
        return path.suffix in (".gguf", ".safetensors")


def _entry(hub: Hub, root: Path, path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    name = path.relative_to(root).as_posix()
    lfs = {
        "sha256": hashlib.sha256(data).hexdigest(),
        "oid": hashlib.sha256(data).hexdigest(),
        "size": len(data),
        "pointerSize": 134,
    }
    entry = {
        "type": "file",
        "path": name,
        "rfilename": name,
        "size": len(data),
        "oid": hashlib.sha1(data).hexdigest(),
        "blobId": "b",
    }
    return {**entry, "lfs": lfs} if hub.large(path) else entry


@contextmanager
def hub_server(root: Path) -> Iterator[Hub]:
    """Serve the repositories root/OWNER/NAME on loopback."""
    hub = Hub(root)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            hub.asked.append(f"{self.command} {self.path}")
            if found := _API.match(self.path):
                self._api(found[1], found[2])
            elif found := _FILE.match(self.path):
                self._file(found[1], root / found[1] / found[2], body=body)
            else:
                self._send(404, b"")

        def _api(self, name: str, kind: str | None) -> None:
            folder = root / name
            if name in hub.gated:
                self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
                return
            if not folder.is_dir():
                self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
                return
            files = [_entry(hub, folder, path) for path in sorted(folder.rglob("*")) if path.is_file()]
            found = {
                "id": name,
                "sha": commit_of(name),
                "siblings": files,
                "cardData": {"license": "apache-2.0"},
                "private": False,
            }
            self._send(
                200,
                json.dumps(files if kind == "tree" else found).encode(),
                {"Content-Type": "application/json"},
            )

        def _file(self, name: str, path: Path, *, body: bool) -> None:
            data = path.read_bytes() if path.is_file() else b""
            tag = hashlib.sha256(data).hexdigest()
            if path.name in hub.damaged:
                data = bytes(byte ^ 1 for byte in data)
            headers = {"ETag": f'"{tag}"', "X-Repo-Commit": commit_of(name)}
            status = 200 if path.is_file() else 404
            if asked := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
                hub.ranges.append(asked[0])
                first, total = int(asked[1]), len(data)
                status, data = 206 if first < total else 416, data[first:]
                headers["Content-Range"] = f"bytes {first}-{total - 1}/{total}"
            self._send(status, data, headers, body=body)

        def _send(
            self, status: int, data: bytes, headers: dict[str, str] | None = None, *, body: bool = True
        ) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if not body or self.command == "HEAD":
                return
            while hub.pace and "/resolve/" in self.path and data:
                self.wfile.write(data[: hub.pace])
                data = data[hub.pace :]
                time.sleep(0.1)
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
