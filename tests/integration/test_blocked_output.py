"""A server serves although its output cannot be written."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import burn_remote as br
from support.waiting import PATIENCE_SECONDS

FULL: Final = Path("/dev/full")
COMMAND: Final = (sys.executable, "-m", "burn_remote_server", "--host", "127.0.0.1", "--port")
PIPE_BYTES: Final = 4096  # the smallest size of a pipe on Linux

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full and F_SETPIPE_SZ")


@contextlib.contextmanager
def ending(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def compute(address: str, name: str) -> None:
    with br.RemoteDevice(address, token=name) as device:
        assert br.ones((2,), device=device).tolist() == [1, 1]


def test_a_log_that_nobody_reads_stops_no_session() -> None:
    process = subprocess.Popen(
        [*COMMAND, "0", "--log-format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with ending(process):
        assert process.stdout and process.stderr
        fcntl.fcntl(process.stderr.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        address = process.stdout.readline().split()[-1]
        for number in range(20):  # three lines of some 250 bytes each
            compute(address, f"session-{number}")
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0
        written = os.read(process.stderr.fileno(), 2 * PIPE_BYTES)
        assert PIPE_BYTES // 2 < len(written) <= PIPE_BYTES
        assert re.fullmatch(rb"(\{.*\}\n)+", written)


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_file_system_for_the_output_stops_no_session() -> None:
    with FULL.open("w") as full:
        process = subprocess.Popen(
            [*COMMAND, "0", "--log-format", "json"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    with ending(process):
        assert process.stderr
        for line in process.stderr:
            found = re.search(r'"address": "(\S+?)"', line)
            if found:
                address = found[1]
            if "ready line not written" in line:
                break
        compute(address, "session")
        process.terminate()
        process.stderr.read()
        assert process.wait(PATIENCE_SECONDS) == 0
