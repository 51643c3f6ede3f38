"""The table of one session's tensors: arrays, arriving tensors and failures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from burn_remote_protocol.errors import (
    CollectiveFailed,
    DeviceLost,
    OperationFailed,
    OutOfMemory,
    ProtocolViolation,
    UnknownTensor,
    detached,
)
from burn_remote_protocol.snapshots import items_of
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.access.quota import Quota
from burn_remote_server.backends.interface import Backend, BackendSession, array_shape
from burn_remote_server.tensors.allocations import Allocations, hold_while_alive, memory_bytes
from burn_remote_server.tensors.failures import Failures
from burn_remote_server.tensors.fetch_limits import Fetches
from burn_remote_server.tensors.slots import InFlight, Slot, Uploading

__all__ = ["TensorTable"]


def _nothing(tensors: tuple[int, ...], failure: OperationFailed) -> None:
    """Do nothing."""


def _without_turns() -> None:
    """Do nothing."""


class TensorTable:
    """A session's tensors by id, counted against its quota.

    ``reply_quota`` is the quota for elements copied to host memory for a read; without it, they
    count in the session's own quota. Not thread-safe: the session's worker is the only caller.
    """

    def __init__(
        self,
        backend: Backend,
        session: BackendSession,
        quota: Quota,
        max_fetches: int | None = None,
        reply_quota: Quota | None = None,
    ) -> None:
        self._backend: Final = backend
        self._session: Final = session
        self._quota: Final = quota
        self._reply_quota: Final = quota if reply_quota is None else reply_quota
        self.allocations: Final = Allocations(quota, backend.root, backend.nbytes)
        self._shared: Final = self.allocations.shared  # both are checked for every drop
        self._lent: Final = self.allocations.lent
        # record(result, inputs): records a result that may share memory with inputs; its bytes are
        # already counted. Returns the array to store, which may be a copy.
        self.record: Final = self.allocations.add
        self._fetches: Final = Fetches(quota, max_fetches, self._reply_quota)
        self._failures: Final = Failures(self._reply_quota)
        # Ready arrays have their own dictionary, so the usual case is one lookup that returns an
        # array. The interpreter holds references to both dictionaries; they are never replaced.
        self.arrays: Final[dict[int, Any]] = {}
        self.slots: Final[dict[int, Slot]] = {}
        # Set when the device is lost; every read then fails.
        self.lost: DeviceLost | None = None
        # Reports the failure of a collective; the arguments are its outputs and the failure.
        self.report: Callable[[tuple[int, ...], OperationFailed], None] = _nothing
        # Called before a thread may wait for a tensor.
        self.before_waiting: Callable[[], None] = _without_turns
        # The tensor that is being fetched and for which an operation waits now.
        self.waits_for: InFlight | None = None

    def __len__(self) -> int:
        return len(self.arrays) + len(self.slots)

    def array(self, tensor: int) -> Any:
        """Return a tensor's array, waiting for it if it is being fetched.

        Raises ``OperationFailed`` for a failed tensor, and ``UnknownTensor``.
        """
        array = self.arrays.get(tensor)
        if array is not None:
            return array
        slot = self.slots.get(tensor)
        if slot is None:
            raise self._failures.unknown(tensor)
        if isinstance(slot, Uploading):
            raise UnknownTensor(
                f"tensor {tensor} is still being uploaded: "
                f"{slot.received:,} of {slot.size:,} bytes have arrived"
            )
        if isinstance(slot, OperationFailed):
            # The traceback would grow each time the same exception is raised.
            raise slot.with_traceback(None)
        if slot.last_report is not None:
            slot.note_progress(0)  # the session itself has worked until now
        self.waits_for = slot
        self.before_waiting()
        try:
            fetched = slot.array()
        except CollectiveFailed as failure:
            # Reported here, once, like the failure of an operation: it is known only now.
            self.store_failure((tensor,), detached(failure))
            self.report((tensor,), failure)
            raise
        finally:
            self.waits_for = None
        array = self._session.adopt(fetched)
        self.store(tensor, array)
        return array

    def store(self, tensor: int, array: Any) -> None:
        """Store an array under a tensor's id, and free the previous one.

        Raises ``QuotaExceeded`` if it does not fit.
        """
        self.forget(tensor)
        size = self._backend.nbytes(array)
        self._quota.take(size, 1)
        try:
            self.arrays[tensor] = self.allocations.add(array)
        except BaseException:  # such as a lack of memory for a copy
            self._quota.give_back(size, 1)
            raise

    def alias(self, tensor: int, source: int) -> None:
        """Store the array of a tensor under a second id, waiting for it if it is being fetched.

        The bytes of the elements count for each id. Raises ``QuotaExceeded`` if they do not fit,
        and the errors of ``array``.
        """
        array = self.array(source)
        size = self._backend.nbytes(array)
        self._quota.take(size, 1)
        try:
            recorded = self.allocations.add(array, [array])
        except BaseException:
            self._quota.give_back(size, 1)
            raise
        self.forget(tensor)
        self.arrays[tensor] = recorded

    def store_failure(self, tensors: Sequence[int], failure: OperationFailed) -> None:
        """Store a new failure in the place of tensors.

        If the failure does not fit into the quota, or the session has too many tensors, reading the
        tensors raises ``QuotaExceeded``.
        """
        if tensors:
            self.pass_failure(tensors, self._failures.kept(failure))

    def pass_failure(self, tensors: Sequence[int], failure: OperationFailed) -> None:
        """Store the failure of another tensor in the place of tensors."""
        for tensor in tensors:
            self.forget(tensor)
            if self._failures.add_entry(partial(self._quota.check_slot, self.slots)):
                self.slots[tensor] = failure

    def expose(self, tensor: int, exposed: object) -> None:
        """Count a tensor's memory until ``exposed``, which references it, is freed."""
        self.allocations.lend(self.arrays[tensor], exposed)

    def hold_reply(self, tensor: int, elements: memoryview) -> None:
        """Count elements that wait to be sent, until nothing references them.

        Raises ``QuotaExceeded`` if they are a copy that does not fit.
        """
        owner = elements.obj
        if self._backend.reads_in_place and tensor in self.arrays:
            array = self.arrays[tensor]
            if self.allocations.shares(array, owner):
                self.allocations.lend(array, owner)
                return
        hold_while_alive(self._reply_quota, owner, elements.nbytes)

    def store_shared(self, tensor: int, shared: Any) -> None:
        """Store an uploaded array, or one shared by another session, under a tensor's id.

        Raises ``QuotaExceeded``.
        """
        self.store(tensor, self._session.adopt(shared))

    def begin_upload(self, tensor: int, spec: TensorSpec, byte_count: int) -> Uploading:
        """Reserve memory for a tensor that arrives in chunks.

        Raises ``QuotaExceeded``, ``OutOfMemory``, and ``ProtocolViolation`` if the byte count does
        not match the shape and dtype.
        """
        if byte_count != spec.nbytes:
            raise ProtocolViolation(f"{spec} has {spec.nbytes:,} bytes, not {byte_count:,}")
        self.forget(tensor)
        size = memory_bytes(spec)
        self._take(size)
        try:
            slot = Uploading(spec, self._backend.empty(spec))
            self.slots[tensor] = slot
        except MemoryError:
            self._quota.give_back(size, 1)
            raise OutOfMemory(f"not enough memory for {spec} ({size:,} bytes)") from None
        except BaseException:
            self._quota.give_back(size, 1)
            raise
        return slot

    def begin_fetch(self, tensor: int, slot: InFlight) -> None:
        """Reserve memory for a tensor that is fetched from another session or server.

        Raises ``QuotaExceeded``.
        """
        self.forget(tensor)
        self._quota.check_slot(self.slots)
        self._fetches.begin(slot)
        self.slots[tensor] = slot

    def _take(self, size: int) -> None:
        refusal = self._quota.refusal([size])
        if refusal is not None:
            raise refusal
        self._quota.take(size, 1)

    def finish_upload(self, tensor: int, slot: Uploading) -> None:
        """Replace a complete upload by its array.

        If ``MemoryError`` or ``DeviceLost`` is raised, the upload stays.
        """
        shared = self._backend.finished(slot.upload, slot.spec.dtype)
        array = self._session.adopt(shared)
        del self.slots[tensor]
        self.arrays[tensor] = array

    def refused_upload(self, tensor: int) -> bool:
        """Whether to ignore chunks for this tensor, although it is not an upload.

        The upload was refused, or the tensor was dropped while chunks were in transit.
        """
        return tensor not in self.arrays

    def slot(self, tensor: int) -> Slot | None:
        """Return the slot under a tensor's id; ``None`` if it has an array or does not exist."""
        return self.slots.get(tensor)

    def read(self, tensor: int, spec: TensorSpec) -> Any:
        """Return the array of a tensor with the shape of ``spec``.

        Raises the errors of ``array``, ``UnknownTensor`` for another shape, and ``DeviceLost``.
        """
        if self.lost is not None:
            failure = self.slots.get(tensor)  # may name the operation that found the device lost
            error = failure if isinstance(failure, OperationFailed) else self.lost
            raise error.with_traceback(None)
        array = self.array(tensor)
        if tuple(array.shape) != array_shape(spec):
            raise UnknownTensor(
                f"tensor {tensor} has the shape {list(array.shape)}, not {list(array_shape(spec))}"
            )
        return array

    def await_arrivals(self) -> None:
        """Wait for every tensor that is still arriving; store those that failed as failures.

        Raises ``DeviceLost``.
        """
        if self.lost is not None:
            raise self.lost.with_traceback(None)
        for tensor, slot in items_of(self.slots):
            if isinstance(slot, InFlight):
                try:
                    self.array(tensor)
                except OperationFailed as failure:
                    if tensor in self.slots and self.slots[tensor] is slot:
                        self.store_failure((tensor,), detached(failure))
        self._fetches.remove_ended()  # fetches of tensors that were dropped before they arrived

    def has_slots(self) -> bool:
        """Whether some tensor has no array, so that using it may wait or fail."""
        return bool(self.slots)

    def drop(self, tensors: Iterable[int]) -> None:
        """Free tensors; ids that the session does not have are ignored."""
        take, nbytes, shared, lent = self.arrays.pop, self._backend.nbytes, self._shared, self._lent
        size = count = 0
        try:
            for tensor in tensors:
                array = take(tensor, None)
                if array is None:
                    self._forget_slot(tensor)
                elif shared or lent:
                    self.allocations.forget(array)
                else:
                    size += nbytes(array)
                    count += 1
        finally:  # an interrupt may stop this loop on a local device
            self._quota.give_back(size, count)

    def clear(self) -> None:
        """Free all tensors, including those still being uploaded or fetched."""
        self.drop([*self.arrays, *self.slots])
        self._fetches.end()

    def forget(self, tensor: int) -> None:
        """Free a tensor if the session has it."""
        array = self.arrays.pop(tensor, None)
        if array is not None:
            if self._shared or self._lent:
                self.allocations.forget(array)
            else:
                self._quota.give_back(self._backend.nbytes(array), 1)
        else:
            self._forget_slot(tensor)

    def _forget_slot(self, tensor: int) -> None:
        slot = self.slots.pop(tensor, None)
        if isinstance(slot, Uploading):
            self._quota.give_back(memory_bytes(slot.spec), 1)
        elif isinstance(slot, InFlight):
            self._fetches.drop(slot)
        elif slot is not None:
            self._failures.remove_entry()
