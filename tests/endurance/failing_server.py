"""A server whose allocations fail one by one, at random places.

Runs the server's command. Once it serves, a thread makes one allocation of the interpreter fail
every ``FAILING_SERVER_SECONDS``, ``FAILING_SERVER_COUNT`` times, in any thread: the one that
follows a random number of others. The thread's name ends when it has finished.
"""

from __future__ import annotations

import _testcapi  # type: ignore[import-not-found]
import faulthandler
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any, Final

from burn_remote_server.__main__ import main as run_command
from burn_remote_server.command_line import banner

COUNT_VARIABLE: Final = "FAILING_SERVER_COUNT"
SECONDS_VARIABLE: Final = "FAILING_SERVER_SECONDS"
SEED_VARIABLE: Final = "FAILING_SERVER_SEED"
DONE_VARIABLE: Final = "FAILING_SERVER_DONE"

# An idle server makes hundreds of allocations in a second, and one that computes thousands in a
# millisecond.
LONGEST_SKIP: Final = 3000


def _fail(count: int, seconds: float, seed: int, done: str) -> None:
    rng = random.Random(seed)
    failed = 0
    while failed < count:
        try:
            time.sleep(seconds)
            after = rng.randrange(LONGEST_SKIP)
            _testcapi.set_nomemory(after, after + 1)
            failed += 1
        except MemoryError:
            pass  # the allocation was one of this thread
    _testcapi.remove_mem_hooks()
    Path(done).touch()


def main() -> None:
    """Run the server's command with the arguments of this process."""
    faulthandler.register(signal.SIGUSR1)  # for a run whose server hangs
    announce = banner.announce
    arguments = (
        int(os.environ[COUNT_VARIABLE]),
        float(os.environ[SECONDS_VARIABLE]),
        int(os.environ[SEED_VARIABLE]),
        os.environ[DONE_VARIABLE],
    )
    failing = threading.Thread(target=_fail, args=arguments, daemon=True)

    def announced(*given: Any, **options: Any) -> None:
        announce(*given, **options)
        failing.start()

    setattr(banner, "announce", announced)  # noqa: B010 - for the type checker, modules are final
    run_command()


if __name__ == "__main__":
    main()
