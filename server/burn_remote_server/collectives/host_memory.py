"""The elements of a collective in host memory: its inputs, and outputs to be filled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from burn_remote_protocol.collectives import CollectiveKind
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.byte_buffers import empty_bytes
from burn_remote_server.backends.interface import Backend
from burn_remote_server.collectives.collective_engine import Job
from burn_remote_server.collectives.member import Member

__all__ = ["Output", "input_bytes", "outputs_of"]


def input_bytes(job: Job, inputs: Sequence[Any], member: Member) -> list[memoryview]:
    """Return the elements of a member's inputs; a barrier has one byte."""
    if job.call.kind is CollectiveKind.BARRIER:
        return [memoryview(b"\0")]
    return [
        member.backend.to_bytes(one, spec.dtype)
        for one, spec in zip(inputs, job.call.input_specs(member.spec.rank), strict=True)
    ]


def outputs_of(job: Job, member: Member) -> list[Output]:
    """Return the memory of a member's outputs."""
    specs = [slot.spec for slot in job.outputs if slot.spec is not None]
    return [Output(member.backend, spec) for spec in specs]


class Output:
    """An output that is being filled."""

    def __init__(self, backend: Backend, spec: TensorSpec) -> None:
        self._backend: Final = backend
        self._spec: Final = spec
        self._upload: Final = backend.empty(spec)
        memory = backend.upload_memory(self._upload)
        self._is_staged: Final = memory is None
        self.memory: Final = empty_bytes(spec.nbytes) if memory is None else memory

    def finished(self) -> Any:
        """Return the shared array."""
        if self._is_staged and self._spec.nbytes:
            self._backend.write(self._upload, 0, self.memory)
        return self._backend.finished(self._upload, self._spec.dtype)
