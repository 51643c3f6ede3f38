"""A server that kills itself by SIGKILL inside a graph or a fused block, after a kernel has run.

``KILLED_INSIDE`` in the environment says where (``graph`` or ``block``), and ``KILLED_AT`` is the
number of the kernel's call there. Graphs count the calls of ``Float.Tanh``.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from burn_remote_protocol.operations.row import Signature
from burn_remote_server.__main__ import main
from burn_remote_server.backends.array.array_session import ArraySession
from burn_remote_server.backends.interface import Run
from burn_remote_server.fusion.cpu import block_program

__all__: list[str] = []


class _Countdown:
    """Kills the process at a call."""

    def __init__(self) -> None:
        self._calls_left = int(os.environ["KILLED_AT"])

    def count(self) -> None:
        self._calls_left -= 1
        if not self._calls_left:
            os.kill(os.getpid(), signal.SIGKILL)


def _is_in_graph() -> bool:
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_stack(None)]
    return any(file.endswith("programs/graphs.py") for file in files)


def _kill_in_graph(countdown: _Countdown) -> None:
    bind = ArraySession.bind

    def bound(session: ArraySession, signature: Signature) -> Run:
        run = bind(session, signature)
        if str(signature.row) != "Float.Tanh":
            return run

        def killing(*tensors: Any, **options: Any) -> Any:
            results = run(*tensors, **options)
            if _is_in_graph():
                countdown.count()
            return results

        return killing

    with (
        patch.object(ArraySession, "bind", bound),
        patch.object(ArraySession, "bind_into", lambda session, signature: None),
    ):
        main()


def _kill_in_block(countdown: _Countdown) -> None:
    run_step = block_program._run_step

    def killing(*arguments: Any) -> None:
        run_step(*arguments)
        countdown.count()

    with patch.object(block_program, "_run_step", killing):
        main()


PLACES: dict[str, Callable[[_Countdown], None]] = {
    "graph": _kill_in_graph,
    "block": _kill_in_block,
}


if __name__ == "__main__":
    PLACES[os.environ["KILLED_INSIDE"]](_Countdown())
