"""Conversion between byte counts and text such as ``64MiB``."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["format_bytes", "parse_bytes"]

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.ASCII | re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Return the number of bytes in ``1.5GiB``, ``64MB`` or ``4096``. Raises ``ValueError``."""
    match = _SIZE.fullmatch(text)
    unit = match and _UNITS.get(match[2].lower())
    if match and match[2].lower() in ("k", "m", "g", "t"):
        written = f"{match[1]}{match[2].upper()}iB"
        raise ValueError(f"expected a size with its unit; write {written}")
    if not match or not unit:
        raise ValueError("expected a size in bytes, such as 67108864 or 64MiB")
    return int(match[1]) * unit if match[1].isdecimal() else int(float(match[1]) * unit)


def format_bytes(count: int) -> str:
    """Return a byte count in the largest binary unit: ``1.5GiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g}{unit}"
        size /= 1024
    return f"{size:.4g}TiB"
