"""Tests that need the package ``iroh`` are left out where it has no wheel."""

from __future__ import annotations

import importlib.util

collect_ignore: list[str] = []
if importlib.util.find_spec("iroh") is None:
    collect_ignore = [
        "test_async_link.py",
        "test_blocking_link.py",
        "test_faults.py",
        "test_library.py",
        "test_listening.py",
    ]


def pytest_report_header() -> str:
    return f"tests of the transport Iroh left out: {', '.join(collect_ignore) or 'none'}"
