"""What do the Python package of cuDNN's version, and its errors, say?"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["PACKAGE", "lacks_memory", "why_unusable"]

PACKAGE: Final = "nvidia-cudnn-frontend"

# Older ones lack what is called here, or have not been looked at.
OLDEST: Final = (1, 10)

_RELEASE: Final = re.compile(r"(\d+)\.(\d+)")


def why_unusable(version: str) -> str | None:
    """Return why a version of the package is not used, or ``None``."""
    release = _RELEASE.match(version)
    if release is None:
        return f"{PACKAGE} has a version that cannot be read: {version}"
    if tuple(map(int, release.groups())) < OLDEST:
        return f"{PACKAGE} {version} is too old"
    return None


def lacks_memory(error: RuntimeError) -> bool:
    """Whether cuDNN found no memory for something of its own.

    The package has one type for all that goes wrong; cuDNN's name for it is in the text
    (``CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED``, before version 9
    ``CUDNN_STATUS_ALLOC_FAILED``).
    """
    return re.search("ALLOC(ATION)?_FAILED", str(error)) is not None
