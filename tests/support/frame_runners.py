"""A runner of Burn 0.22's frames without a socket, and a record of everything it replies."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np

from burn_remote_protocol.dialects.burn_0_22_recognition import KnownFrame, MessageRecognizer
from burn_remote_protocol.dtypes import F32, I32
from burn_remote_protocol.errors import OperationFailed, TransferFailed
from burn_remote_protocol.messages import Fetch, ReplyValue, Upload
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.access.quota import Pool
from burn_remote_server.backends import open_backends
from burn_remote_server.backends.interface import Backend
from burn_remote_server.dialects.burn_0_22.task_runner import Burn22Runner
from burn_remote_server.execution.engine import Engine
from burn_remote_server.hosting.host import new_interpreter
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.tensors.exposed_tensors import Transfers
from burn_remote_server.tensors.slots import InFlight

__all__ = ["FrameRunner", "RecordedReplies"]


class RecordedReplies:
    """An outbox that records the replies, with f32 elements as lists, and fails every fetch."""

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.failed_tensors: list[tuple[int, ...]] = []

    def reply(self, request: int, value: ReplyValue) -> None:
        if isinstance(value, TensorData):
            is_f32 = value.dtype == F32
            self.values[request] = (
                np.frombuffer(value.bytes, np.float32).tolist() if is_f32 else bytes(value.bytes)
            )
        else:
            self.values[request] = str(value)

    def failed(self, tensors: tuple[int, ...], error: OperationFailed) -> None:
        self.failed_tensors.append(tensors)

    def fetch(self, task: Fetch, slot: InFlight) -> None:
        slot.fail(TransferFailed("no server is there"))

    def profile(self, request: int, answer: Any) -> None:
        self.values[request] = str(answer)


class FrameRunner:
    """A runner and the recognizer of its repeated frames."""

    def __init__(
        self,
        backend: Backend | None = None,
        settings: Settings | None = None,
        pool: Pool | None = None,
    ) -> None:
        self.answers = RecordedReplies()
        backend = backend or open_backends("numpy", 1)[0]
        self.interpreter = new_interpreter(backend, settings or Settings(), self.answers, pool)
        self.engine = Engine(self.interpreter, Transfers(), self.answers, transfer_domain="burn")
        self.runner = Burn22Runner(
            self.engine,
            self.interpreter,
            self.answers,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
        )
        self.recognizer = MessageRecognizer()
        self.undivided = 0

    @property
    def state(self) -> list[Any]:
        """Everything that a client or another session can notice."""
        tensors, quota = self.interpreter.tensors, self.interpreter.quota
        return [
            self.answers.values,
            self.answers.failed_tensors,
            {number: array.tolist() for number, array in tensors.arrays.items()},
            {number: str(slot) for number, slot in tensors.slots.items()},
            (quota.tensors, quota.bytes, quota.held),
            sorted(each[1:] for each in tensors.allocations.shared.values()),
            self.interpreter.executed,
            str(self.runner.failure),
        ]

    def upload(self, tensor: int, *values: float) -> None:
        data = np.asarray(values, np.float32).tobytes()
        self.runner.run([Upload(tensor, TensorData(data, (len(values),), F32))])

    def upload_index(self, tensor: int, index: int) -> None:
        data = np.asarray([index], np.int32).tobytes()
        self.runner.run([Upload(tensor, TensorData(data, (1,), I32))])

    def upload_inputs_of_steps(self) -> None:
        """Upload the tensors of drawn steps: two of floats, a valid and an invalid index."""
        self.upload(1, 1.5, 2.5)
        self.upload(2, 1, 2, 3)
        self.upload_index(3, 1)
        self.upload_index(4, 9)

    def frame(self, *messages: Any) -> KnownFrame:
        """Return a frame undivided, which the recognizer has then seen before."""
        return self.known(msgpack.packb(messages))

    def known(self, packed: bytes) -> KnownFrame:
        """Return a packed frame undivided, which the recognizer has then seen before."""
        for _ in range(3):
            self.recognizer.decode(packed)
        found = self.recognizer.recognize(packed)
        assert found is not None
        return found

    def run_together(self, frames: list[bytes]) -> None:
        """Run frames undivided as one batch, as if the recognizer had expected each of them."""
        self.runner.run([self.known(frame) for frame in frames])

    def run(self, frames: list[bytes], *, undivided: bool) -> None:
        for frame in frames:
            known = self.recognizer.recognize(frame) if undivided else None
            if known is None:
                self.runner.run(self.recognizer.decode(frame))
            else:
                self.undivided += 1
                self.runner.run([known])
