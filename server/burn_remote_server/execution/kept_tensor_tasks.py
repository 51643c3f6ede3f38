"""Execution of tasks on tensors kept beyond a session: contents by digest, and named tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from burn_remote_protocol.errors import (
    OperationFailed,
    OutOfMemory,
    ProtocolViolation,
    UnknownTensor,
    detached,
    shown,
)
from burn_remote_protocol.kept_tensors import content_hash
from burn_remote_protocol.messages import (
    KeepContent,
    ListPublished,
    OpenContent,
    OpenPublished,
    Publish,
    Unpublish,
)
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.access.quota import HeldCopies
from burn_remote_server.execution.engine_interfaces import Outbox
from burn_remote_server.execution.interpreter import Interpreter
from burn_remote_server.tensors.allocations import memory_bytes
from burn_remote_server.tensors.kept_tensors import KeptTensor, OwnKeptTensors

__all__ = ["KeptTasks"]

# Bytes that are hashed at a time. Elements on a GPU need as much host memory. After each block, the
# thread checks whether the session has ended.
BLOCK_BYTES: Final = 4 * 1024 * 1024


class KeptTasks:
    """The handlers of tasks on kept tensors in one session.

    ``own`` is ``None`` if the server keeps no tensors beyond a session.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        outbox: Outbox,
        own: OwnKeptTensors | None,
        fail: Callable[[int, OperationFailed, str, str], None],
        is_stopped: Callable[[], bool],
    ) -> None:
        """``fail(tensor, error, operation, shapes)`` stores a failure as a tensor."""
        self._interpreter: Final = interpreter
        self._tensors: Final = interpreter.tensors
        self._outbox: Final = outbox
        self._optional: Final = own
        self._fail: Final = fail
        self._is_stopped: Final = is_stopped
        self.handlers: Final[Mapping[type[Any], Callable[[Any], None]]] = {
            KeepContent: self._keep_content,
            OpenContent: self._open_content,
            Publish: self._publish,
            Unpublish: self._unpublish,
            ListPublished: self._list,
            OpenPublished: self._open_published,
        }

    @property
    def _own(self) -> OwnKeptTensors:
        if self._optional is None:
            raise ProtocolViolation("this server keeps no tensors beyond a session")
        return self._optional

    def _keep_content(self, task: KeepContent) -> None:
        """Keep tensors if their elements have the digest; otherwise, keep and report nothing."""
        own = self._own
        if sum(map(memory_bytes, task.specs)) > own.kept.max_content_bytes:
            return
        hashing = content_hash(task.specs)
        kept: list[KeptTensor] = []
        try:
            with HeldCopies(self._interpreter.quota) as copies:
                for place, spec in enumerate(task.specs):
                    array = self._array(task.first + place, spec)
                    if not array.flags.c_contiguous:
                        return  # not an upload, which would be contiguous
                    items = max(1, BLOCK_BYTES // max(1, array.itemsize))
                    flat = array.reshape(-1)
                    for start in range(0, flat.size, items):
                        if self._is_stopped():
                            return
                        block = flat[start : start + items]
                        hashing.update(self._interpreter.backend.to_bytes(block, spec.dtype))
                    kept.append(self._kept(array, spec, copies))
                # Other sessions open the content by its digest alone, so a wrong one must not be
                # kept.
                if hashing.digest() == task.digest:
                    own.keep_content(task.digest, kept, copies)
        except (OperationFailed, MemoryError):
            return

    def _open_content(self, task: OpenContent) -> None:
        tensors = self._own.open_content(task.digest)
        if tensors is None or len(tensors) != task.count:
            self._outbox.reply(task.request, 0)
            return
        opened = range(task.first, task.first + task.count)
        try:
            for tensor, one in zip(opened, tensors, strict=True):
                self._store(tensor, one)
        except OperationFailed as error:
            for tensor in opened:
                self._tensors.forget(tensor)
            failure = type(error)(error.reason, operation="OpenContent")
            self._outbox.reply(task.request, failure)
        else:
            self._outbox.reply(task.request, 1)

    def _publish(self, task: Publish) -> None:
        own = self._own
        shapes = f"{task.spec}, {shown(task.name)}"
        try:
            array = self._array(task.tensor, task.spec)
            with HeldCopies(self._interpreter.quota) as copies:
                own.publish(task.name, self._kept(array, task.spec, copies), copies)
        except OperationFailed as error:
            refusal = type(error)(error.reason, operation="Publish", shapes=shapes)
            # The failure of a failed tensor names the operation that failed; other errors do not.
            self._outbox.reply(task.request, detached(error) if error.operation else refusal)
        except MemoryError:
            reason = f"not enough memory for {task.spec}"
            failure = OutOfMemory(reason, operation="Publish", shapes=shapes)
            self._outbox.reply(task.request, failure)
        else:
            self._outbox.reply(task.request, None)

    def _unpublish(self, task: Unpublish) -> None:
        self._outbox.reply(task.request, int(self._own.unpublish(task.name)))

    def _list(self, task: ListPublished) -> None:
        found = self._own.published()
        names = sorted(found) if task.name is None else {task.name} & found.keys()
        self._outbox.reply(task.request, tuple((name, found[name].spec) for name in names))

    def _open_published(self, task: OpenPublished) -> None:
        found = self._own.published().get(task.name)
        try:
            if found is None:
                raise UnknownTensor(f"no tensor is published as {shown(task.name)} any more")
            if found.spec != task.spec:
                raise UnknownTensor(
                    f"the tensor published as {shown(task.name)} has been replaced by {found.spec}"
                )
            self._store(task.tensor, found)
        except OperationFailed as error:
            shapes = f"{task.spec}, {shown(task.name)}"
            self._fail(task.tensor, error, "OpenPublished", shapes)

    def _array(self, tensor: int, spec: TensorSpec) -> Any:
        array = self._tensors.read(tensor, spec)
        if array.dtype != self._interpreter.session.array_dtype(spec.dtype):
            raise UnknownTensor(f"tensor {tensor} has the dtype {array.dtype}, not {spec.dtype}")
        return array

    def _kept(self, array: Any, spec: TensorSpec, copies: HeldCopies) -> KeptTensor:
        """Return the array to keep, or a copy if it is a view of a larger allocation.

        A copy counts in the session's quota, until the store takes it over. Raises
        ``QuotaExceeded``.
        """
        backend = self._interpreter.backend
        size = backend.nbytes(backend.root(array))
        if size > backend.nbytes(array):
            size = backend.nbytes(array)
            copies.hold(size)
            array = array.copy()
        shared = self._interpreter.session.share(array)
        return KeptTensor(shared, spec, max(size, memory_bytes(spec)))

    def _store(self, tensor: int, kept: KeptTensor) -> None:
        refusal = self._interpreter.quota.refusal([memory_bytes(kept.spec)])
        if refusal is not None:
            raise refusal
        self._tensors.store_shared(tensor, kept.shared)
