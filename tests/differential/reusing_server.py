"""A server, and sessions of this process, that reuse the memory of tensors of every size.

``python -m differential.reusing_server`` takes the arguments of ``burn-remote-server``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from burn_remote_server.__main__ import main
from burn_remote_server.backends.numpy import recycling
from support.memory_reuse import forced_reuse
from support.servers import RunningServer
from support.servers import server as started

__all__ = ["reusing_memory", "server"]

TESTS = Path(__file__).parents[1]


@contextlib.contextmanager
def reusing_memory() -> Iterator[None]:
    """Let results reuse the memory of dying inputs, and received tensors that of freed ones."""
    with forced_reuse(), patch.object(recycling, "MIN_BYTES", 1):
        yield


def server(*flags: str) -> contextlib.AbstractContextManager[RunningServer]:
    """Start such a server in a process of its own."""
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    return started(*flags, module="differential.reusing_server", PYTHONPATH=paths)


if __name__ == "__main__":
    sys.argv[0] = "burn-remote-server"
    with reusing_memory():
        main()
