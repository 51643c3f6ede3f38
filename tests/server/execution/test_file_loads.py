"""Loads of the server's files in the engine: in order, off the event loop, interruptible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dialects.native import Batch
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import FileUnavailable, QuotaExceeded
from burn_remote_protocol.messages import FindFile, LoadFile, Read, Task
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.access import data_files
from burn_remote_server.access.data_files import DataFiles, OpenFile
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.execution import file_tasks
from support.engines import EngineSession, undecoded

ELEMENTS = np.arange(1000, dtype=np.float32)
SPEC = TensorSpec((1000,), F32)


class ComputingElsewhere(NumpyBackend):
    """A backend whose memory the host cannot write into, like that of a GPU."""

    def upload_memory(self, upload: Any) -> None:
        return None


@pytest.fixture
def files(tmp_path: Path) -> DataFiles:
    (tmp_path / "x.bin").write_bytes(b"head" + ELEMENTS.tobytes())
    return DataFiles([tmp_path])


def load(files: DataFiles, tensor: int = 1, spec: TensorSpec = SPEC, offset: int = 4) -> LoadFile:
    return LoadFile(tensor, spec, "x.bin", files.find("x.bin").version, offset)


@pytest.mark.parametrize("backend", [NumpyBackend, ComputingElsewhere])
@pytest.mark.parametrize("block_bytes", [4, 1000, 4000, 2**20])
def test_a_file_is_loaded_block_by_block(
    backend: type[NumpyBackend], block_bytes: int, files: DataFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_tasks, "BLOCK_BYTES", block_bytes)
    session = EngineSession(backend=backend(), files=files)
    session.run(load(files), Read(1, 1, SPEC))
    read = np.frombuffer(session.outbox.replies[1].bytes, np.float32)
    np.testing.assert_array_equal(read, ELEMENTS)


def test_a_find_is_answered_with_size_and_version(files: DataFiles) -> None:
    session = EngineSession(files=files)
    session.run(FindFile(7, "x.bin"))
    assert np.frombuffer(session.outbox.replies[7].bytes, np.uint64).tolist() == [
        *files.find("x.bin")
    ]


@pytest.mark.parametrize("task", [FindFile(1, "x"), LoadFile(1, SPEC, "x", 0, 0)])
def test_files_are_never_opened_on_the_event_loop(task: Task) -> None:
    session = EngineSession()
    # An unknown cost sends a batch to the session's own thread.
    assert session.engine.estimate(Batch(0, (undecoded(task),))) is None


def test_a_session_that_ends_stops_reading(
    files: DataFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_tasks, "BLOCK_BYTES", 1000)
    session = EngineSession(files=files)
    read_into = OpenFile.read_into
    blocks = []

    def read_and_stop(file: OpenFile, memory: memoryview) -> None:
        blocks.append(len(memory))
        session.engine.stop()
        read_into(file, memory)

    monkeypatch.setattr(data_files.OpenFile, "read_into", read_and_stop)
    session.run(load(files))
    assert blocks == [1000]
    session.engine.close()
    assert session.quota.bytes == 0


def test_a_refused_load_reads_nothing(files: DataFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_into(file: OpenFile, memory: memoryview) -> None:
        raise AssertionError("a refused load must not read")

    monkeypatch.setattr(data_files.OpenFile, "read_into", read_into)
    session = EngineSession(files=files, max_bytes=3999)
    session.run(load(files), load(files, 2, offset=5), Read(1, 1, SPEC), Read(2, 2, SPEC))
    assert isinstance(session.outbox.replies[1], QuotaExceeded)
    assert isinstance(session.outbox.replies[2], FileUnavailable)
    assert session.quota.bytes == 0


def test_a_load_that_fails_half_way_frees_its_memory(
    files: DataFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_tasks, "BLOCK_BYTES", 1000)
    session = EngineSession(files=files)
    task = load(files)
    read_into = OpenFile.read_into

    def truncate_then_read(file: OpenFile, memory: memoryview) -> None:
        read_into(file, memory)
        (tmp_path / "x.bin").write_bytes(b"")

    monkeypatch.setattr(data_files.OpenFile, "read_into", truncate_then_read)
    session.run(task, Read(1, 1, SPEC))
    assert isinstance(session.outbox.replies[1], FileUnavailable)
    assert "shorter" in str(session.outbox.replies[1])
    assert session.outbox.failures[0][0] == (1,)
    assert session.quota.bytes == 0
