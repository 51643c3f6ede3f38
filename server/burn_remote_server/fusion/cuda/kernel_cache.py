"""A limit for the disk cache of compiled kernels, which CuPy does not limit.

Each new shape or operation adds kernels, so the cache would fill the disk in the long run.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

__all__ = ["MAX_CACHE_BYTES", "trim"]

# A kernel takes about 10 KB, so this is enough for tens of thousands.
MAX_CACHE_BYTES: Final = 256 * 2**20

# The names of CuPy's compiled kernels; the server must not remove other files in the folder.
_KERNELS: Final = "*.cubin"


def trim(folder: Path, limit_bytes: int = MAX_CACHE_BYTES) -> int:
    """Remove the least recently used kernels until half of the limit is free.

    Does nothing if the cache is within the limit. Returns how many kernels were removed; files that
    cannot be removed are left. A removed kernel is compiled again when it is needed.
    """
    found = []
    for path in folder.glob(_KERNELS):
        with contextlib.suppress(OSError):  # another process may remove it now
            status = path.stat()
            found.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    total = sum(size for _, size, _ in found)
    if total <= limit_bytes:
        return 0
    removed = 0
    for _, size, path in sorted(found):
        if total <= limit_bytes // 2:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size
            removed += 1
    return removed
