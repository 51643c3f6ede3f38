"""``burn_remote.torch`` in an environment without PyTorch."""

from __future__ import annotations

import subprocess
import sys

# An installed PyTorch is hidden.
PROGRAM = """
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else found(name, *rest)
try:
    import burn_remote.torch
except ImportError as error:
    print(error.name, error)
"""


def test_an_import_without_pytorch_says_how_to_install_it() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout.startswith("torch burn_remote.torch needs PyTorch")
    assert 'pip install "burn-remote[torch]"' in shown.stdout
