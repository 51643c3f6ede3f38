"""The queue of tasks for a Burn server.

Frames are encoded when they are sent. If the program has dropped a tensor by then, its last use is
marked as such, as Burn's own client does, which saves a frame for the drop. If the last use is no
longer in the queue, a frame for the drop precedes the next task that makes a tensor. So the server
never has more tensors than the program had, and a program that fits into a quota fits there.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
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


# A tensor to be freed, the length of the queue when it was dropped, and the position of the task
# that frees it. Another thread may have sent the queue since, so the length may be beyond its end.
# A plain tuple: making an object of a class takes a twentieth of an operation.
_Dropped = tuple[int, int, int]


class Outgoing:
    """The queue of frames. Any thread may call ``drop``; all other methods need the lock."""

    def __init__(self, release: BurnRelease) -> None:
        self._release: Final = release
        # The server's dtype for bools; programs see only ``BOOL``.
        self.bool_store: DType = BOOL
        self._pack: Final = reusable_pack()
        self._positions: Final = itertools.count()
        # A list, because deleting a slice of one is atomic.
        self._dropped: Final[list[_Dropped]] = []
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
        invocation = _Invocation(found[0], tensors, next(self._positions))
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
        return self._release.request(next(self._positions))

    def drop(self, tensor: int) -> None:
        """Free a tensor with the next frames. Lock-free, because ``__del__`` calls it."""
        self._dropped.append((tensor, len(self._waiting), next(self._positions)))

    @property
    def dropped(self) -> int:
        """The number of tensors to be freed."""
        return len(self._dropped)

    def take(self) -> list[bytes]:
        """Return all queued frames. The caller removes from the list what it sends.

        If this raises, such as ``MemoryError``, the queue is unchanged.
        """
        live, last_uses = self._live, self._last_uses
        count = len(self._dropped)  # other threads append
        gone: set[int] = set()
        drops: list[_Dropped] = []
        last: dict[_Invocation | _QueuedRequest, tuple[int, ...]] = {}
        for dropped in self._dropped[:count]:
            tensor = dropped[0]
            if tensor in live and tensor not in gone:
                gone.add(tensor)
                use = last_uses.get(tensor)
                if use is None:
                    drops.append(dropped)
                else:
                    last[use[0]] = (*last.get(use[0], ()), use[1])
        pack, release = self._pack, self._release
        messages: list[bytes] = []
        for entry in self._with_drops(drops) if drops else self._waiting:
            if type(entry) is bytes:
                messages.append(entry)
            elif type(entry) is tuple:
                messages.append(release.encode_drop(entry[0], release.request(entry[2])))
            else:
                messages.append(entry.write(last.get(entry, ()), pack, release))  # type: ignore[union-attr, arg-type]
        frames = release.frames(messages)
        leaving, all_dropped, sent = self._leaving, self._dropped, slice(count)
        waiting: list[_Invocation | _QueuedRequest | bytes] = []
        uses: dict[int, tuple[_Invocation | _QueuedRequest, int]] = {}
        # The first of these statements may raise ``MemoryError``, and CPython runs no signal
        # handler between them, because they call nothing.
        leaving += frames
        self._waiting = waiting
        self._last_uses = uses
        del all_dropped[sent]
        live -= gone
        return leaving

    def _with_drops(
        self, drops: Sequence[_Dropped]
    ) -> Iterator[_Invocation | _QueuedRequest | bytes | _Dropped]:
        """Yield the queue with drops at their places.

        Those after the last task that may make a tensor come last: no reply waits for them.
        """
        queue = self._waiting
        end = len(queue)
        while end and type(queue[end - 1]) is _QueuedRequest:
            end -= 1
        left = collections.deque(drops)
        for index, entry in enumerate(queue):
            while left and left[0][1] <= index < end:
                yield left.popleft()
            yield entry
        yield from left

    def drops(self) -> list[bytes]:
        """Return the frames that free all remaining tensors, at the end of the session.

        Needs no lock: after Ctrl-C, another thread ends the session.
        """
        live = [*self._live]
        messages = [self._release.encode_drop(tensor, self.next_request()) for tensor in live]
        return self._release.frames(messages)

    def stored(self, spec: TensorSpec) -> TensorSpec:
        """Return a tensor's shape and dtype as the server stores it."""
        return TensorSpec(spec.shape, self.bool_store) if spec.dtype is BOOL else spec

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
