"""A server that measures how long its event loop and its interpreter lock are occupied.

Runs the server's command on asyncio's own event loop and, at the end of the process, appends a line
of JSON to the file that ``MEASURED_SERVER_REPORT`` names (``Occupation``). Where
possible, these are processor times, because elapsed times depend on other load of the machine.
"""

from __future__ import annotations

import asyncio
import asyncio.base_events
import asyncio.events
import atexit
import gc
import json
import os
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

from burn_remote_server.__main__ import main as run_command
from burn_remote_server.command_line import banner, daemon

REPORT_VARIABLE: Final = "MEASURED_SERVER_REPORT"

# How often the probing thread asks for the interpreter lock.
PROBE_SECONDS: Final = 0.001


@dataclass(slots=True)
class Occupation:
    """The longest occupations since the measurement began, in milliseconds.

    ``turn`` is the processor time of one turn of the event loop, ``callback`` that of the longest
    callback, with its name, and ``collection`` that of one garbage collection. ``lock`` is how long
    a thread waited for the interpreter lock, counted in processor time of the process: it is an
    upper bound, as other threads may have computed without the lock meanwhile.
    """

    turn: float = 0.0
    callback: float = 0.0
    callback_name: str = ""
    collection: float = 0.0
    lock: float = 0.0
    lock_holders: str = ""


class _Measurement:
    def __init__(self) -> None:
        self.found = Occupation()
        self._collection_began = 0.0

    def restart(self) -> None:
        """Discard the measurements so far, because the server has only now started."""
        self.found = Occupation()

    def install(self) -> None:
        loops: Any = asyncio.base_events.BaseEventLoop
        handles: Any = asyncio.events.Handle
        run_once, run_handle = loops._run_once, handles._run

        def measured_turn(loop: Any) -> None:
            began = time.thread_time()
            run_once(loop)
            self.found.turn = max(self.found.turn, 1000 * (time.thread_time() - began))

        def measured_callback(handle: Any) -> None:
            began = time.thread_time()
            run_handle(handle)
            taken = 1000 * (time.thread_time() - began)
            if taken > self.found.callback:
                self.found.callback = taken
                self.found.callback_name = repr(handle)[:300]

        loops._run_once = measured_turn
        handles._run = measured_callback
        gc.callbacks.append(self._collect)
        threading.Thread(target=self._probe, daemon=True).start()

    def _collect(self, phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began = time.thread_time()
        else:
            taken = 1000 * (time.thread_time() - self._collection_began)
            self.found.collection = max(self.found.collection, taken)

    def _probe(self) -> None:
        while True:
            began, used = time.perf_counter(), time.process_time()
            time.sleep(PROBE_SECONDS)
            waited = time.perf_counter() - began - PROBE_SECONDS
            computed = time.process_time() - used
            held = 1000 * min(waited, computed)
            if held > self.found.lock:
                self.found.lock, self.found.lock_holders = held, _running_code()


def _running_code() -> str:
    """Return where the threads of the process are, innermost calls first."""
    own = threading.get_ident()
    return "; ".join(
        " < ".join(
            f"{frame.f_code.co_qualname}:{line}"
            for frame, line in islice(traceback.walk_stack(top), 4)
        )
        for thread, top in sys._current_frames().items()
        if thread != own
    )


def main() -> None:
    """Run the server's command with the arguments of this process."""
    measurement = _Measurement()
    report = Path(os.environ[REPORT_VARIABLE])

    def write() -> None:
        report.write_text(json.dumps(asdict(measurement.found)))

    def exit_now(code: int) -> None:
        write()
        os._exit(code)

    atexit.register(write)
    # A server that still computes at its end runs no exit handlers. The default was bound when
    # ``run`` was defined.
    cast("Any", daemon.run).__kwdefaults__["exit_now"] = exit_now
    daemon._loop_factory = lambda: None
    announce = banner.announce

    def announced(*arguments: Any, **options: Any) -> None:
        announce(*arguments, **options)
        measurement.install()
        asyncio.get_running_loop().call_later(0.1, measurement.restart)

    setattr(banner, "announce", announced)  # noqa: B010 - for the type checker, modules are final
    run_command()


if __name__ == "__main__":
    main()
