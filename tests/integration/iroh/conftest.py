"""Tests that need the package ``iroh`` are left out where it has no wheel."""

from __future__ import annotations

import importlib.util

collect_ignore: list[str] = []
if importlib.util.find_spec("iroh") is None:
    collect_ignore = ["test_devices_over_iroh.py", "test_transfers_over_iroh.py"]
