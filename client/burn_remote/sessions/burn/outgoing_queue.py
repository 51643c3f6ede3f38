"""The queue of tasks for a Burn server.

Frames are encoded when they are sent. If the program has dropped a tensor by then, its last use is
marked as such, as Burn's own client does, which saves a frame for the drop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

from burn_remote.arguments.arrays import array_from, data_from
from burn_remote.sessions.burn.burn_version_differences import BurnRelease
from burn_remote_protocol.dialects.burn_0_21_recognition import OperationTemplate
from burn_remote_protocol.dialects.reusable_packer import reusable_pack
from burn_remote_protocol.dtypes import BOOL, DType
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.messages import Drop, Expose, Read, Task, Upload
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorData, TensorSpec

__all__ = ["Outgoing"]

# Templates cached per session, about 1 KiB each: as many as a native session numbers signatures.
TEMPLATES_KEPT: Final = 4096


class _Invocation:
    """A queued operation. ``write`` takes the places of the tensors that it is the last to use."""

    __slots__ = ("position", "template", "tensors")

    def __init__(self, template: OperationTemplate, tensors: Sequence[int], position: int) -> None:
        self.template = template
        self.tensors = tensors
        self.position = position

    def write(
        self, last: tuple[int, ...], pack: Callable[[int], bytes], release: BurnRelease
    ) -> bytes:
        tail = release.end_of_operation(self.position)
        return self.template.write(self.tensors, last, tail, pack)


class _QueuedRequest:
    """A queued read or expose. ``write`` takes a place if its tensor is dropped after it."""

    __slots__ = ("request", "task")

    def __init__(self, task: Read | Expose, request: int) -> None:
        self.task = task
        self.request = request

    def write(
        self, last: tuple[int, ...], pack: Callable[[int], bytes], release: BurnRelease
    ) -> bytes:
        tasks: list[Task] = [self.task]
        if last:
            tasks.append(Drop((self.task.tensor,)))
        return release.encode_task(tasks, self.request)


class Outgoing:
    """The queue of frames. Any thread may call ``drop``; all other methods need the lock."""

    def __init__(self, release: BurnRelease) -> None:
        self._release: Final = release
        # The server's dtype for bools; programs see only ``BOOL``.
        self.bool_store: DType = BOOL
        self._pack: Final = reusable_pack()
        self._position = 0
        # A list, because deleting a slice of one is atomic.
        self._dropped: Final[list[int]] = []
        self._waiting: list[_Invocation | _QueuedRequest | bytes] = []
        # Frames that were encoded, and that the link has not taken yet.
        self._leaving: Final[list[bytes]] = []
        # For each tensor that a queued task uses: its last use.
        self._last_uses: dict[int, tuple[_Invocation | _QueuedRequest, int]] = {}
        # By identity: the program's cache of signatures returns the same object for the same call.
        self._templates: dict[int, tuple[OperationTemplate, Signature]] = {}
        # Tensors on the server. A real Burn server keeps those of a client that has disconnected.
        self._live: set[int] = set()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._leaving)

    def operation(self, signature: Signature, tensors: Sequence[int]) -> None:
        """Add an operation: the ids of its inputs, then those of its outputs."""
        found = self._templates.get(id(signature)) or self._prepare(signature)
        invocation = _Invocation(found[0], tensors, self._next_position())
        count = len(signature.input_uses)
        # Before the operation is queued: a drop of a tensor that is not live is ignored.
        self._live.update(tensors[count:])
        self._waiting.append(invocation)
        for index in range(count):
            self._last_uses[tensors[index]] = (invocation, index)

    def add_request(self, task: Read | Expose, request: int) -> None:
        """Add a task that uses a tensor; ``request`` is its id, of ``next_request``."""
        question = _QueuedRequest(task, request)
        self._waiting.append(question)
        self._last_uses[task.tensor] = (question, 0)

    def task(self, task: Task, request: int | None = None, *, made: int | None = None) -> None:
        """Add any other task; ``made`` is the tensor that it creates."""
        request = self.next_request() if request is None else request
        if made is not None:
            self._live.add(made)
        self._waiting.append(self._release.encode_task([task], request))

    def upload(self, tensor: int, data: TensorData) -> None:
        """Add an upload. Raises ``UsageError`` if its message would end the session."""
        stored = self.stored(data.spec)
        if stored != data.spec:
            data = data_from(array_from(data), stored.dtype)
        request = self.next_request()
        empty = Upload(tensor, TensorData(b"", data.shape, data.dtype))
        rest = (
            len(self._release.encode_task([empty], request)) + 4
        )  # the length is in front of the elements
        size = rest + memoryview(data.bytes).nbytes
        most = self._release.max_message_bytes
        if size > most:
            raise UsageError(
                f"a server of {self._release.vocabulary} takes a tensor in one message, of at "
                f"most {most:,} bytes, and ends the session at more; {data.spec} needs "
                f"{size:,}: upload parts of it and concatenate them there"
            )
        self.task(Upload(tensor, data), request, made=tensor)

    def next_request(self) -> int:
        """Return a request id: the position of the next task."""
        return self._release.request(self._next_position())

    def drop(self, tensor: int) -> None:
        """Free a tensor with the next frames. Lock-free, because ``__del__`` calls it."""
        self._dropped.append(tensor)

    @property
    def dropped(self) -> int:
        """The number of tensors to be freed."""
        return len(self._dropped)

    def take(self) -> list[bytes]:
        """Return all queued frames, drops last. The caller removes from the list what it sends.

        If this raises, such as ``MemoryError``, the queue is unchanged.
        """
        live, last_uses = self._live, self._last_uses
        count = len(self._dropped)  # other threads append
        gone = {tensor for tensor in self._dropped[:count] if tensor in live}
        drops = []
        last: dict[_Invocation | _QueuedRequest, tuple[int, ...]] = {}
        for tensor in dict.fromkeys(self._dropped[:count]):
            if tensor in gone:
                use = last_uses.get(tensor)
                if use is None:
                    drops.append(tensor)
                else:
                    last[use[0]] = (*last.get(use[0], ()), use[1])
        pack, release, position = self._pack, self._release, self._position
        messages = [
            entry if type(entry) is bytes else entry.write(last.get(entry, ()), pack, release)  # type: ignore[union-attr, arg-type]
            for entry in self._waiting
        ]
        for tensor in drops:
            messages.append(release.encode_drop(tensor, release.request(position)))
            position += 1
        frames = release.frames(messages)
        leaving, dropped, sent = self._leaving, self._dropped, slice(count)
        waiting: list[_Invocation | _QueuedRequest | bytes] = []
        uses: dict[int, tuple[_Invocation | _QueuedRequest, int]] = {}
        # The first of these statements may raise ``MemoryError``, and CPython runs no signal
        # handler between them, because they call nothing.
        leaving += frames
        self._position = position
        self._waiting = waiting
        self._last_uses = uses
        del dropped[sent]
        live -= gone
        return leaving

    def take_drops(self) -> list[bytes]:
        """Return the frames that free all remaining tensors, at the end of the session."""
        messages = [self._release.encode_drop(tensor, self.next_request()) for tensor in self._live]
        self._live.clear()
        return self._release.frames(messages)

    def stored(self, spec: TensorSpec) -> TensorSpec:
        """Return a tensor's shape and dtype as the server stores it."""
        return TensorSpec(spec.shape, self.bool_store) if spec.dtype is BOOL else spec

    def _next_position(self) -> int:
        position = self._position
        self._position = position + 1
        return position

    def _prepare(self, signature: Signature) -> tuple[OperationTemplate, Signature]:
        if len(self._templates) >= TEMPLATES_KEPT:
            self._templates.clear()
        template = self._release.template(self._as_stored(signature))
        prepared = self._templates[id(signature)] = (template, signature)
        return prepared

    def _as_stored(self, signature: Signature) -> Signature:
        if self.bool_store is BOOL:
            return signature
        arguments = tuple(
            tuple(map(self._use, argument)) if _is_list(argument) else self._use(argument)
            for argument in signature.arguments
        )
        return dataclasses.replace(signature, arguments=arguments)

    def _use(self, argument: Any) -> Any:
        if type(argument) is TensorUse:
            return TensorUse(self.stored(argument.spec), argument.status)
        return argument


def _is_list(argument: Any) -> bool:
    return type(argument) is tuple
