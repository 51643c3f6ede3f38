"""A Burn client that sends the tasks a test chooses."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np

from burn_remote_protocol.dialects.burn_0_21 import encode_init, encode_tasks, request_id
from burn_remote_protocol.dialects.burn_0_21_responses import decode_reply
from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.links.interface import BlockingLink
from burn_remote_protocol.links.transport_registry import connect
from burn_remote_protocol.messages import Execute, Read, Sync, Task, Upload
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.tensors import TensorData, TensorSpec
from support.waiting import PATIENCE_SECONDS

__all__ = ["BurnSockets"]


class BurnSockets:
    """The two sockets of one session. As in Burn's client, the caller chooses tensor ids."""

    def __init__(self, address: str) -> None:
        self.requests: BlockingLink = connect(address, "/request", close_timeout_seconds=0)
        self.responses: BlockingLink = connect(address, "/response", close_timeout_seconds=0)
        session = secrets.randbits(63)
        for link in (self.requests, self.responses):
            link.send(encode_init(session))
        self._position = 0

    def __enter__(self) -> BurnSockets:
        return self

    def __exit__(self, *_: object) -> None:
        self.requests.close()
        self.responses.close()

    def say(self, *tasks: Task, stream: int = 0) -> None:
        """Send one task, or a read with the drop that follows it."""
        self._position += 1
        self.requests.send(encode_tasks(tasks, request_id(self._position, stream)))

    def upload(self, tensor: int, array: Any, dtype: DType, stream: int = 0) -> None:
        """Send a tensor."""
        self.say(Upload(tensor, TensorData(array.tobytes(), array.shape, dtype)), stream=stream)

    def execute(self, signature: Signature, *tensors: int, stream: int = 0) -> None:
        """Send an operation."""
        self.say(Execute(Operation(signature, tensors)), stream=stream)

    def read(self, tensor: int, spec: TensorSpec, stream: int = 0) -> Any:
        """Return the response: data or an error."""
        request = request_id(self._position + 1, stream)
        self.say(Read(request, tensor, spec), stream=stream)
        return self._answer(request)

    def array(self, tensor: int, spec: TensorSpec, dtype: Any = np.float32, stream: int = 0) -> Any:
        """Return the elements of a tensor."""
        data = self.read(tensor, spec, stream)
        assert isinstance(data, TensorData), data
        assert data.spec == spec
        return np.frombuffer(data.bytes, dtype).reshape(spec.shape)

    def sync(self) -> Any:
        """Wait until everything sent has been executed; return the first unread error."""
        request = request_id(self._position + 1, 0)
        self.say(Sync(request))
        return self._answer(request)

    def _answer(self, request: int) -> Any:
        frame = self.responses.receive(PATIENCE_SECONDS)
        assert frame is not None, "no answer came"
        answer = decode_reply(frame)
        assert answer.request == request
        return answer.value
