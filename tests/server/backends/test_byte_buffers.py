"""Tests of copies in host memory."""

from __future__ import annotations

from burn_remote_server.backends.byte_buffers import copy_bytes
from support.interpreter_lock import releases_interpreter_lock


def test_other_threads_run_while_bytes_are_copied() -> None:
    source = memoryview(bytes(range(256)) * 4096)
    target = memoryview(bytearray(len(source)))
    assert releases_interpreter_lock(lambda: copy_bytes(target, source))
    assert target == source


def test_no_bytes_are_copied() -> None:
    copy_bytes(memoryview(bytearray()), memoryview(b""))
