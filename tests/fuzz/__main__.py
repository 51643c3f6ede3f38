"""Fuzz one target with coverage guidance: ``python -m fuzz session 300`` runs for 300 s.

Inputs that reach new code are stored in the results folder. An input that breaks a target is
written to ``tests/fuzz/corpus/TARGET``, where ``test_corpus.py`` runs it from then on. Needs
atheris: the dependency group ``fuzz``.
"""

from __future__ import annotations

import argparse
import logging
import resource
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import Final

import atheris

with atheris.instrument_imports(include=["burn_remote_protocol", "burn_remote_server"]):
    from fuzz.kept import kept_inputs
    from fuzz.targets import SEEDS, TARGETS

KEPT: Final = Path(__file__).parent / "corpus"
# Limit of the process's address space. An input that exceeds it raises MemoryError and is reported.
ADDRESS_SPACE_BYTES: Final = 8 * 2**30
MAX_INPUT_BYTES: Final = 4096


class Counted:
    """A target that counts its inputs, which atheris does not report."""

    def __init__(self, name: str) -> None:
        self.inputs = 0
        self._name = name
        self._target = TARGETS[name]
        self._started = time.monotonic()

    def __call__(self, data: bytes) -> None:
        self.inputs += 1
        if self.inputs % 100_000 == 0:
            self.report()
        try:
            self._target(data)
        except BaseException:
            folder = KEPT / self._name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / sha256(data).hexdigest()[:16]).write_bytes(data)
            self.report()
            raise

    def report(self) -> None:
        """Print the number of inputs tried."""
        seconds = time.monotonic() - self._started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        sys.stderr.write(
            f"{self._name}: {self.inputs:,} inputs in {seconds:.0f} s, {peak} MiB at most\n"
        )


def main() -> None:
    """Fuzz until the time has passed or an input breaks the target."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("seconds", type=int, help="time to run")
    parser.add_argument(
        "--results", type=Path, default=Path(".fuzz"), help="folder for inputs that reach new code"
    )
    given = parser.parse_args()
    corpus = given.results / given.target
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in (*SEEDS[given.target](), *kept_inputs(given.target)):
        (corpus / sha256(seed).hexdigest()[:16]).write_bytes(seed)
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    kept = KEPT / given.target
    folders = [str(corpus), *([str(kept)] if kept.exists() else [])]
    flags = [
        f"-max_total_time={given.seconds}",
        f"-max_len={MAX_INPUT_BYTES}",
        "-rss_limit_mb=4096",
    ]
    atheris.Setup([sys.argv[0], *flags, "-timeout=20", *folders], Counted(given.target))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
