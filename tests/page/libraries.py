"""Copy the JavaScript libraries of the page from npm, byte for byte, with their licences; `--check` only compares.

`libraries.json` pins each package by version and SHA-512; `vendor/hashes.txt` has the SHA-256 of each copied file.
To move to another version, change both fields of the package and run `nox -s libraries`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

HERE = Path(__file__).parent
VENDOR = HERE.parents[1] / "src" / "plumbline" / "server" / "page" / "assets" / "vendor"
PACKAGES: list[dict[str, Any]] = json.loads((HERE / "libraries.json").read_text("utf-8"))


def main() -> None:
    """Download, and write or compare."""
    files = {name: body for package in PACKAGES for name, body in copied(package).items()}
    files["licences.txt"] = "\n\n".join(
        f"{package['name']} {package['version']}, {package['licence']}\n\n"
        + files.pop(f"licence of {package['name']}").decode()
        for package in PACKAGES
    ).encode()
    hashes = (f"{hashlib.sha256(body).hexdigest()}  {name}\n" for name, body in sorted(files.items()))
    files["hashes.txt"] = "".join(hashes).encode()
    if "--check" in sys.argv[1:]:
        differ = sorted(name for name, body in files.items() if (VENDOR / name).read_bytes() != body)
        sys.exit(f"These files are not those of the packages: {', '.join(differ)}." if differ else 0)
    VENDOR.mkdir(exist_ok=True)
    for old in VENDOR.iterdir():
        old.unlink()
    for name, body in files.items():
        (VENDOR / name).write_bytes(body)


def copied(package: dict[str, Any]) -> dict[str, bytes]:
    """Return the files of a package that the page needs.

    Args:
        package: an entry of `libraries.json`; `files` are patterns of paths within the package.

    Raises:
        SystemExit: the package has other bytes than those pinned.
    """
    with tempfile.TemporaryDirectory() as folder:
        wanted = f"{package['name']}@{package['version']}"
        subprocess.run(["npm", "pack", "--silent", "--pack-destination", folder, wanted], check=True)
        [archive] = Path(folder).iterdir()
        digest = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if digest != package["integrity"]:
            sys.exit(f"{wanted} has the SHA-512 {digest}, and not the one in libraries.json.")
        found = {}
        with tarfile.open(archive) as opened:
            for member in opened.getmembers():
                path = PurePosixPath(*PurePosixPath(member.name).parts[1:])
                reader = opened.extractfile(member)
                if reader is None:
                    continue
                if str(path) == "LICENSE":
                    found[f"licence of {package['name']}"] = reader.read()
                elif any(fnmatchcase(str(path), pattern) for pattern in package["files"]):
                    found[path.name] = reader.read()
        # The folder is flat, so the fonts are beside their style sheet. Browsers read the first format, woff2.
        if (style := found.get("katex.min.css")) is not None:
            found["katex.min.css"] = style.replace(b"url(fonts/", b"url(")
        return found


if __name__ == "__main__":
    main()
