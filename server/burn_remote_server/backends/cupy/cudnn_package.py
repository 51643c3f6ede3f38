"""Versions and errors of the cuDNN Python package."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["PACKAGE", "lacks_memory", "why_unusable"]

PACKAGE: Final = "nvidia-cudnn-frontend"

# The oldest version that this project was tested with.
OLDEST: Final = (1, 10)

_RELEASE: Final = re.compile(r"(\d+)\.(\d+)")


def why_unusable(version: str) -> str | None:
    """Return the reason why a version of the package cannot be used, or ``None``."""
    release = _RELEASE.match(version)
    if release is None:
        return f"{PACKAGE} has an unreadable version: {version}"
    if tuple(map(int, release.groups())) < OLDEST:
        return f"{PACKAGE} {version} is too old; version {'.'.join(map(str, OLDEST))} is needed"
    return None


def lacks_memory(error: RuntimeError) -> bool:
    """Whether cuDNN ran out of memory.

    The package raises one type for every error; the text contains cuDNN's status name
    (``CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED``, before version 9
    ``CUDNN_STATUS_ALLOC_FAILED``).
    """
    return re.search("ALLOC(ATION)?_FAILED", str(error)) is not None
