"""Replay of sessions recorded from Burn on one of our backends.

The client's frames run through the server's interpreter in recorded order, and each response to a
read is compared with the recorded one. Shapes, dtypes, integers and bools must be equal.
Floating-point numbers must agree within a tolerance for correct implementations. Random numbers are
compared by shape only.

Burn's own server sends some responses in another dtype than declared: gathered or selected bools as
``U8``, and argmax and argmin of integers as ``I64``. Our servers send the declared dtype.
"""

from __future__ import annotations

import contextvars
from typing import Any, Final, NamedTuple

import ml_dtypes
import msgpack
import numpy as np

from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import BurnRemoteError, OperationFailed
from burn_remote_protocol.frozen_map import FrozenMap
from burn_remote_protocol.operations.encoding import decode_operation, decode_tensor_data
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.operations.wire_values import decode_tensor
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.access.quota import Quota
from burn_remote_server.backends.interface import Backend
from burn_remote_server.execution.interpreter import Interpreter

__all__ = [
    "RANDOM",
    "TOLERANCES",
    "Outcome",
    "Replay",
    "difference",
    "elements",
    "in_context",
    "replay",
]

# Relative and absolute tolerances, equal to those of the recorder's own replay.
TOLERANCES: Final = {
    "F64": (1e-3, 1e-4),
    "F32": (1e-3, 1e-4),
    "Flex32": (1e-3, 1e-4),
    "F16": (1e-2, 1e-2),
    "BF16": (5e-2, 5e-2),
}
RANDOM: Final = ("Random", "IntRandom", "Empty")

Key = tuple[int, int]  # server, tensor


class Outcome(NamedTuple):
    """The number of compared responses, and a description of each difference."""

    compared: int
    problems: list[str]


class _Server:
    """One server of a recorded session: an interpreter and its pending responses."""

    def __init__(self, backend: Backend, problems: list[str]) -> None:
        self.backend = backend
        self.answers: dict[str, Any] = {}
        self._problems = problems
        self.interpreter = Interpreter(backend, Quota(2**34, 2**20), self._failed)

    def _failed(self, tensors: tuple[int, ...], failure: OperationFailed) -> None:
        self._problems.append(str(failure))

    def read(self, wire: Any) -> Any:
        identifier, use = decode_tensor(wire)
        try:
            array = self.interpreter.tensors.read(identifier, use.spec)
            content = self.backend.to_bytes(array, use.spec.dtype)
        except BurnRemoteError as error:
            return str(error)
        return TensorData(content, use.spec.shape, use.spec.dtype)


class Replay:
    """The replay of one session; ``kept`` has the responses to reads without random numbers."""

    def __init__(self, session: dict[str, Any], backend: Backend, compare_usage: bool) -> None:
        self.frames = session["frames"]
        self.compare_usage = compare_usage
        self.problems: list[str] = []
        count = 1 + max(frame.get("server", 0) for frame in self.frames)
        self.servers = [_Server(backend, self.problems) for _ in range(count)]
        self.exposed: dict[int, Any] = {}
        # Random tensors and tensors computed from them.
        self.random: set[Key] = set()
        self.random_reads: set[str] = set()
        self.compared = 0
        self.kept: list[TensorData | str] = []

    def run(self) -> Outcome:
        for frame in self.frames:
            if frame["route"] == "/data":
                continue
            number = frame.get("server", 0)
            message = msgpack.unpackb(frame["payload"], use_list=False, object_pairs_hook=FrozenMap)
            if frame["dir"] == "s2c":
                self._compare(number, *message)
            elif message[0][0] == "Compute":
                self._execute(number, *message[0][1])
        for server in self.servers:
            server.interpreter.clear()
        return Outcome(self.compared, self.problems)

    def _execute(self, number: int, task: Any, identity: Any) -> None:
        server = self.servers[number]
        name: str
        body: Any
        name, body = (task, None) if type(task) is str else task[0]
        key = f"{number} {identity}"
        interpreter = server.interpreter
        interpreter.session.activate()
        match name:
            case "RegisterOperation":
                operation = decode_operation(body)
                self._mark_random(number, operation)
                interpreter.execute(operation)
            case "RegisterTensor":
                (identifier,), data = body
                shared = server.backend.to_device(decode_tensor_data(data))
                interpreter.tensors.store_shared(identifier, shared)
                self.random.discard((number, identifier))
            case "ReadTensor":
                server.answers[key] = server.read(body)
                if (number, body[0][0]) in self.random:
                    self.random_reads.add(key)
            case "SyncBackend":
                server.answers[key] = None
            case "DTypeUsage":
                server.answers[key] = int(server.backend.dtype_usage(DType.from_wire(body)))
            case "Seed":
                interpreter.seed(body)
            case "ExposeTensorRemote":
                tensor, _, transfer = body
                identifier, use = decode_tensor(tensor)
                array = interpreter.tensors.read(identifier, use.spec)
                self.exposed[transfer] = interpreter.session.share(array)
            case "RegisterTensorRemote":
                (transfer, _), (identifier,) = body
                interpreter.tensors.store_shared(identifier, self.exposed[transfer])

    def _mark_random(self, number: int, operation: Operation) -> None:
        signature, tensors = operation
        count = len(signature.input_uses)
        keys = [(number, tensor) for tensor in tensors]
        if signature.row.name in RANDOM or not self.random.isdisjoint(keys[:count]):
            self.random.update(keys[count:])
        elif signature.row.name != "Init":
            self.random.difference_update(keys[count:])

    def _compare(self, number: int, content: Any, identity: Any) -> None:
        key = f"{number} {identity}"
        ((kind, expected),) = content
        seen = self.servers[number].answers.pop(key)
        self.compared += 1
        if kind == "DTypeUsage":
            wrong = self.compare_usage and seen != expected
            problem = f"usage {seen} instead of {expected}" if wrong else None
        elif kind == "SyncBackend":
            problem = None if seen is None else f"{seen} instead of the answer to a sync"
        else:
            problem = difference(dict(expected), seen, key in self.random_reads)
            if key not in self.random_reads:
                self.kept.append(seen)
        if problem:
            self.problems.append(f"answer {key}: {problem}")


def difference(expected: Any, seen: TensorData | str, is_random: bool) -> str | None:
    if isinstance(seen, str) or "Err" in expected:
        both = isinstance(seen, str) and "Err" in expected
        return None if both else f"{seen} instead of {expected}"
    right = decode_tensor_data(expected["Ok"])
    if seen.shape != right.shape:
        return f"{seen.spec} instead of {right.spec}"
    if is_random:
        return None
    a, b = elements(right), elements(seen)
    if right.dtype.name in TOLERANCES:
        relative, absolute = TOLERANCES[right.dtype.name]
        with np.errstate(all="ignore"):
            a, b = a.astype(np.float64), b.astype(np.float64)
            same = np.isclose(b, a, rtol=relative, atol=absolute, equal_nan=True)
    else:
        same = a == b
    if same.all():
        return None
    first = int(np.flatnonzero(~same)[0])
    wrong = f"{(~same).sum()} of {same.size} elements differ"
    return f"{wrong}, first {first}: {b[first]} instead of {a[first]}"


def elements(data: TensorData) -> Any:
    """Return the elements of a tensor as an array of one axis; bools of any storage as bools."""
    dtypes = {"BF16": ml_dtypes.bfloat16, "F16": "<f2", "F32": "<f4", "F64": "<f8", "Flex32": "<f4"}
    name = data.dtype.name
    if data.dtype.is_bool:
        return np.frombuffer(data.bytes, f"<u{data.dtype.itemsize}") != 0
    if name in dtypes:
        return np.frombuffer(data.bytes, dtypes[name])
    return np.frombuffer(data.bytes, f"<{name[0].lower()}{data.dtype.itemsize}")


def replay(session: dict[str, Any], backend: Backend, *, compare_usage: bool = True) -> Outcome:
    """Run a recorded session on a backend and compare the responses."""
    return in_context(Replay(session, backend, compare_usage), backend)


def in_context(replaying: Replay, backend: Backend) -> Outcome:
    """Run a replay in a context of its own, so that the backend's settings end with it."""
    context = contextvars.copy_context()
    context.run(backend.prepare_thread)
    return context.run(replaying.run)
