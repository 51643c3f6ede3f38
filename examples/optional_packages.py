"""A check of the packages that an example needs besides burn-remote."""

from __future__ import annotations

import importlib.util

__all__ = ["check_packages"]


def check_packages(*needed: str, install: str) -> None:
    """End the program with what to install, unless all packages are there."""
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"This example needs {' and '.join(missing)}: {install}")
