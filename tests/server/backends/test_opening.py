"""Backends are opened by name, with the options that they have."""

from __future__ import annotations

import pytest

from burn_remote_protocol.errors import UsageError
from burn_remote_server.backends import open_backends


def test_a_cpu_has_no_tf32() -> None:
    with pytest.raises(UsageError, match="only NVIDIA GPUs have TF32"):
        open_backends("numpy", 1, tf32=True)
