"""Backends are opened by name, with the options that they have."""

from __future__ import annotations

import subprocess
import sys

import pytest

from burn_remote_protocol.errors import UsageError
from burn_remote_server.backends import open_backends


def test_a_cpu_has_no_tf32() -> None:
    with pytest.raises(UsageError, match="only NVIDIA GPUs have TF32"):
        open_backends("numpy", 1, tf32=True)


# An installed CuPy is hidden.
PROGRAM = """
import sys
sys.modules["cupy"] = None
from burn_remote_server.backends import open_backends
try:
    open_backends("cupy", 1)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_backend_without_its_library_says_the_command_that_installs_it() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert shown.startswith("UsageError the backend 'cupy' needs CuPy")
    assert 'run pip install "burn-remote[cuda13]", or "burn-remote[cuda12]"' in shown
