"""One session's engine on the NumPy backend, driven by messages, with a recording outbox."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np

from burn_remote_protocol.dialects.native import Batch, encode_task
from burn_remote_protocol.dtypes import F32, DType
from burn_remote_protocol.errors import OperationFailed
from burn_remote_protocol.frozen_map import FrozenMap
from burn_remote_protocol.messages import Fetch, Read, ReplyValue, Task, Upload
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.access.data_files import NO_FILES, DataFiles
from burn_remote_server.access.quota import Pool, Quota
from burn_remote_server.backends.interface import Backend
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.execution.engine import Engine
from burn_remote_server.execution.engine_interfaces import Groups
from burn_remote_server.execution.interpreter import Interpreter
from burn_remote_server.tensors.exposed_tensors import ExposeLimits, Transfers
from burn_remote_server.tensors.kept_tensors import OwnKeptTensors
from burn_remote_server.tensors.slots import InFlight

__all__ = ["EngineSession", "RecordingOutbox", "floats", "undecoded", "vector"]


class RecordingOutbox:
    """The replies, failures and fetches of an engine, also as ``events`` in their order."""

    def __init__(self) -> None:
        self.replies: dict[int, Any] = {}
        self.failures: list[tuple[tuple[int, ...], OperationFailed]] = []
        self.fetches: list[tuple[Fetch, InFlight]] = []
        self.events: list[tuple[Any, ...]] = []
        self.refuse_fetch: OperationFailed | None = None

    def reply(self, request: int, value: ReplyValue) -> None:
        assert request not in self.replies, "a request is replied to once"
        self.replies[request] = value
        self.events.append(("reply", request))

    def failed(self, tensors: tuple[int, ...], error: OperationFailed) -> None:
        self.failures.append((tensors, error))
        self.events.append(("failed", tensors))

    def fetch(self, task: Fetch, slot: InFlight) -> None:
        if self.refuse_fetch is not None:
            raise self.refuse_fetch
        self.fetches.append((task, slot))


class EngineSession:
    """A session: its quota, interpreter, engine and outbox."""

    def __init__(
        self,
        *,
        backend: Backend | None = None,
        max_bytes: int = 2**30,
        max_tensors: int = 1000,
        transfers: Transfers | None = None,
        exposes: ExposeLimits = ExposeLimits(),  # noqa: B008 - frozen
        files: DataFiles = NO_FILES,
        pool: Pool | None = None,
        kept: OwnKeptTensors | None = None,
        groups: Groups | None = None,
        **options: Any,
    ) -> None:
        self.outbox = RecordingOutbox()
        self.quota = Quota(max_bytes, max_tensors, None, pool)
        self.transfers = Transfers() if transfers is None else transfers
        report: Callable[[tuple[int, ...], OperationFailed], None] = self.outbox.failed
        self.interpreter = Interpreter(
            NumpyBackend() if backend is None else backend, self.quota, report, **options
        )
        self.tensors = self.interpreter.tensors
        self.engine = Engine(
            self.interpreter,
            self.transfers,
            self.outbox,
            transfer_domain="test",
            exposes=exposes,
            files=files,
            kept=kept,
            groups=groups,
        )

    def run(self, *tasks: Task | tuple[Any, ...]) -> None:
        """Execute one batch of tasks; tuples are invocations ``(number, *tensors)``."""
        wire = [task if type(task) is tuple else undecoded(task) for task in tasks]
        self.engine.run(Batch(0, tuple(wire)))

    def upload(self, tensor: int, *values: float) -> None:
        """Upload a vector of float32."""
        self.run(Upload(tensor, floats(*values)))

    def values(self, tensor: int, *, size: int, dtype: DType = F32) -> list[float]:
        """Read a vector and return its elements."""
        request = 1_000_000 + len(self.outbox.replies)
        self.run(Read(request, tensor, TensorSpec((size,), dtype)))
        reply = self.outbox.replies[request]
        if isinstance(reply, Exception):
            raise reply
        found: list[float] = np.frombuffer(reply.bytes, np.float32).tolist()
        return found


def undecoded(task: Any) -> Any:
    """Return a task as a batch holds it after unpacking."""
    return msgpack.unpackb(encode_task(task), use_list=False, object_pairs_hook=FrozenMap)


def vector(size: int) -> TensorSpec:
    """Return the spec of a vector of float32."""
    return TensorSpec((size,), F32)


def floats(*values: float) -> TensorData:
    """Return a vector of float32 as it is uploaded."""
    return TensorData(np.array(values, np.float32).tobytes(), (len(values),), F32)
