"""A bound for the disk cache of compiled kernels, which CuPy does not bound.

Programs with other shapes and operations have other kernels, so the cache of a server that runs for
long would fill the disk.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

__all__ = ["MAX_CACHE_BYTES", "trim"]

# A kernel takes some 10 KB, so this is enough for tens of thousands.
MAX_CACHE_BYTES: Final = 256 * 2**20

# CuPy's ending of compiled kernels; other files in the folder are not ours to remove.
_KERNELS: Final = "*.cubin"


def trim(folder: Path, limit_bytes: int = MAX_CACHE_BYTES) -> int:
    """Remove the kernels that were not used for longest, until half of the limit is free.

    Does nothing within the limit. A kernel that is removed is compiled again when it is needed.
    Returns how many were removed. Files that cannot be removed are left.
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
