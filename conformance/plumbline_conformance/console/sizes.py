"""Read and write sizes in bytes as people do."""

from __future__ import annotations

import re

__all__ = ["parse_size", "size_text"]

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _binary = int(1024**_power)
    _UNITS |= {f"{_letter}IB": _binary, _letter: _binary, f"{_letter}B": int(1000**_power)}
_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([KMGT]?(?:IB|B)?)\s*", re.IGNORECASE | re.ASCII)


def parse_size(text: str) -> int | None:
    """Return the bytes that a text such as `1GiB`, `1.5 GB` or `1048576` means, or None if it is not a size.

    `KiB` to `TiB`, and `K` to `T` as in torch's and Docker's options, are powers of 1024; `KB` to `TB` are powers of
    1000.

    >>> parse_size("1.5GiB"), parse_size("200 MB"), parse_size("64k"), parse_size("much")
    (1610612736, 200000000, 65536, None)
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    whole, _, fraction = found[1].partition(".")
    if fraction and found[2].upper() in ("", "B"):  # There are no parts of bytes; a unit was forgotten.
        return None
    scale = _UNITS[found[2].upper()]
    # In integers: floats would round large sizes.
    return int(whole) * scale + int(fraction or 0) * scale // int(10 ** len(fraction))


def size_text(number: int) -> str:
    """Return a number of bytes in the largest unit that it fills, with at most three digits.

    >>> size_text(10 * 1024**3), size_text(6_600_000), size_text(512)
    ('10 GiB', '6.29 MiB', '512 B')
    """
    if number < 1024:
        return f"{number} B"
    size = float(number)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 999.5:
            return f"{size:.3g} {unit}"
    return f"{size / 1024:.3g} TiB" if size < 999.5 * 1024 else f"{size / 1024:,.0f} TiB"
