"""Recorded sessions of Burn give the same bits with and without fusion."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
import pytest

from burn_remote_protocol.errors import OperationFailed
from burn_remote_protocol.frozen_map import FrozenMap
from burn_remote_protocol.operations.encoding import decode_operation, decode_tensor_data
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.operations.wire_values import decode_tensor
from burn_remote_server.backends.interface import Backend
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.dialects.burn_0_21.task_runner import TaskRunner
from burn_remote_server.fusion.runtime_selection import with_fusion
from support.compiled_kernels import compiled_at_once
from support.engines import EngineSession
from support.kernels import Array
from support.random_programs import forced_fusion, same_bits
from support.recorded import recordings, sessions

# One in ``STRIDE`` recorded sessions is replayed: all of them would take half a minute more. With
# compiled kernels, fewer are, because LLVM takes 10 to 60 ms for each program.
STRIDE, COMPILED_STRIDE = 3, 12
# The same operations are fused from their third time on.
PASSES = 4


def tasks_of(session: dict[str, Any]) -> Iterator[Any]:
    """Yield operations, and pairs of a name and a body for other tasks."""
    for frame in session["frames"]:
        if frame["route"] == "/data" or frame["dir"] == "s2c":
            continue
        message = msgpack.unpackb(frame["payload"], use_list=False, object_pairs_hook=FrozenMap)
        if message[0][0] == "Compute":
            task = message[0][1][0]
            name, body = (task, None) if type(task) is str else task[0]
            yield decode_operation(body) if name == "RegisterOperation" else (name, body)


def reads(tasks: list[Any], backend: Backend) -> tuple[list[Any], int]:
    """Run tasks several times; return what they read, and how many operations were fused."""
    session = EngineSession(backend=backend, max_bytes=2**34, max_tensors=2**20)
    runner = TaskRunner(session.engine, session.interpreter, session.outbox)
    tensors = session.tensors
    found: list[Any] = []
    for _ in range(PASSES):
        session.interpreter.seed(1)
        waiting: list[Any] = []
        for task in tasks:
            if isinstance(task, Operation):
                waiting.append(task)
                continue
            runner.run(waiting)
            waiting = []
            name, body = task
            if name == "RegisterTensor":
                (identifier,), data = body
                tensors.store_shared(identifier, backend.to_device(decode_tensor_data(data)))
            elif name == "ReadTensor":
                identifier, use = decode_tensor(body)
                try:
                    found.append(tensors.read(identifier, use.spec).copy())
                except OperationFailed as error:
                    found.append(str(error))
            elif name == "Seed":
                session.interpreter.seed(body)
        runner.run(waiting)
        tensors.drop([*tensors.arrays, *tensors.slots])
    return found, session.interpreter.counts.operations_fused


def is_equal(one: Array | str, other: Array | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and one == other
    return same_bits(one, other)


@pytest.mark.parametrize("recording", recordings())
@pytest.mark.parametrize("compiles", [False, True], ids=["blocks", "compiled"])
def test_recorded_sessions_read_the_same_bits_fused(recording: str, compiles: bool) -> None:
    if compiles:
        pytest.importorskip("llvmlite", reason="the extra fusion is not installed")
    context = contextvars.copy_context()
    context.run(np.seterr, all="ignore")
    fused = 0
    for recorded in sessions(recording)[:: COMPILED_STRIDE if compiles else STRIDE]:
        tasks = [*tasks_of(recorded)]
        if any(type(task) is tuple and "Remote" in task[0] for task in tasks):
            continue  # moves between servers
        expected, _ = context.run(reads, tasks, NumpyBackend())
        with forced_fusion(), compiled_at_once():
            backend = with_fusion(NumpyBackend(), compiles=compiles)
            seen, count = context.run(reads, tasks, backend)
        assert len(seen) == len(expected)
        assert all(map(is_equal, seen, expected)), recorded["name"]
        fused += count
    assert fused or len(sessions(recording)) < 100
