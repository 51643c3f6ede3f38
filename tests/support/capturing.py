"""A NumPy backend whose sessions capture runs, as a GPU does: a launch computes on copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from burn_remote_protocol.operations.row import Signature
from burn_remote_server.backends.array.array_session import ArraySession
from burn_remote_server.backends.interface import CapturedRun, NotCaptured, Run
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.custom import NO_OPERATIONS, CustomOperations

__all__ = ["CapturingBackend", "CapturingSession"]

RunFunction = Callable[[Sequence[Any], Sequence[Any]], list[Any]]


class Block:
    """Memory of a captured run."""


class CopyingRun(CapturedRun):
    """A run that is repeated on copies of its inputs."""

    def __init__(
        self, session: CapturingSession, run: RunFunction, inputs: list[Any], constants: list[Any]
    ) -> None:
        self._session = session
        self._run = run
        self._inputs = inputs
        self._constants = constants
        self._block: Block | None = Block()

    @property
    def blocks(self) -> Sequence[tuple[object, int]]:
        return [] if self._block is None else [(self._block, self._session.captured_bytes)]

    @property
    def is_released(self) -> bool:
        return self._block is None

    def launch(self, inputs: Sequence[Any], numbers: Sequence[Any]) -> list[Any] | None:
        if self._block is None or self._session.launch_error is not None:
            if self._session.launch_error is not None:
                raise self._session.launch_error
            return None
        if any(a.strides != b.strides for a, b in zip(inputs, self._inputs, strict=True)):
            return None
        for own, given in zip(self._inputs, inputs, strict=True):
            own[...] = given
        for constant, number in zip(self._constants, numbers, strict=True):
            constant[...] = number
        return [output.copy() for output in self._run(self._inputs, self._constants)]

    def release(self) -> None:
        self._block = None


class CapturingSession(ArraySession):
    """A session that captures all operations but random ones.

    ``refused`` names the rows whose kernels fail inside a capture. If they are set, a capture
    raises ``capture_error`` and a launch raises ``launch_error``.
    """

    captures_runs = True
    captured_bytes = 0
    refused: frozenset[str] = frozenset()
    capture_error: Exception | None = None
    launch_error: Exception | None = None
    is_capturing = False

    def may_capture(self, signature: Signature) -> bool:
        return signature.row.name != "Random"

    def capture(
        self, run: RunFunction, inputs: Sequence[Any], constants: Sequence[Any]
    ) -> CapturedRun:
        if self.capture_error is not None:
            raise self.capture_error
        copies = [array.copy(order="K") for array in inputs]
        numbers = [constant.copy() for constant in constants]
        self.is_capturing = True
        try:
            run(copies, numbers)
        finally:
            self.is_capturing = False
        return CopyingRun(self, run, copies, numbers)

    def bind(self, signature: Signature) -> Run:
        kernel = super().bind(signature)

        def run(*tensors: Any) -> Any:
            if self.is_capturing and signature.row.name in self.refused:
                raise NotCaptured(f"{signature.row} waits for the device")
            return kernel(*tensors)

        return run


class CapturingBackend(NumpyBackend):
    """The CPU, with sessions that capture runs and never overwrite inputs."""

    def open_session(self, custom: CustomOperations = NO_OPERATIONS) -> CapturingSession:
        session: Any = super().open_session(custom)
        session.__class__ = CapturingSession
        assert isinstance(session, CapturingSession)
        return session

    def owns_memory(self, array: Any) -> bool:
        return False
