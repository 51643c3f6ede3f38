"""The tensors of one session: computed, arriving, or failed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from burn_remote_protocol.errors import (
    DeviceLost,
    OperationFailed,
    OutOfMemory,
    ProtocolViolation,
    UnknownTensor,
)
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.access.quota import Quota
from burn_remote_server.backends.interface import Backend, BackendSession, array_shape
from burn_remote_server.execution.allocations import Allocations, hold_while_alive
from burn_remote_server.execution.fetches import Fetches
from burn_remote_server.execution.plans import memory_bytes
from burn_remote_server.execution.slots import InFlight, Slot, Uploading

__all__ = ["TensorTable"]


class TensorTable:
    """A session's tensors by their ids, counted against its quota.

    ``answers`` is the quota for elements that were copied to the host's memory to be read; without
    it, they count in the session's own. Not thread-safe: the session's worker is the only caller.
    """

    def __init__(
        self,
        backend: Backend,
        session: BackendSession,
        quota: Quota,
        max_fetches: int | None = None,
        answers: Quota | None = None,
    ) -> None:
        self._backend: Final = backend
        self._session: Final = session
        self._quota: Final = quota
        self._answers: Final = quota if answers is None else answers
        self._allocations: Final = Allocations(quota, backend.root, backend.nbytes)
        self._records: Final = self._allocations.records  # looked at for every drop
        # Record a result whose bytes were taken and that may share memory with inputs; returns the
        # array to store, which may be a copy.
        self.record: Final = self._allocations.add
        self._fetches: Final = Fetches(quota, max_fetches)
        # Ready arrays are kept apart from everything else, so that the usual case is one lookup
        # whose result is always an array. The interpreter refers to both dictionaries; they are
        # never replaced.
        self.arrays: Final[dict[int, Any]] = {}
        self.slots: Final[dict[int, Slot]] = {}
        # Why no tensor can be read any more.
        self.lost: DeviceLost | None = None

    def __len__(self) -> int:
        return len(self.arrays) + len(self.slots)

    def array(self, tensor: int) -> Any:
        """Return a tensor's array, waiting for it if it is on its way.

        Raises the ``OperationFailed`` that stands in its place, and ``UnknownTensor``.
        """
        array = self.arrays.get(tensor)
        if array is not None:
            return array
        slot = self.slots.get(tensor)
        if slot is None:
            raise UnknownTensor(f"this session has no tensor {tensor}")
        if isinstance(slot, Uploading):
            raise UnknownTensor(
                f"tensor {tensor} is still being uploaded: "
                f"{slot.received:,} of {slot.size:,} bytes have arrived"
            )
        if isinstance(slot, OperationFailed):
            raise slot
        array = self._session.adopt(slot.array())
        self.store(tensor, array)
        return array

    def store(self, tensor: int, value: Any) -> None:
        """Store an array or a slot under a tensor's id and free what was there.

        Raises ``QuotaExceeded`` for an array that the session may not have.
        """
        self.forget(tensor)
        if isinstance(value, Slot):
            self._quota.take_slot(len(self.slots))
            self.slots[tensor] = value
        else:
            self._quota.take(self._backend.nbytes(value), 1)
            self.arrays[tensor] = self._allocations.add(value)

    def expose(self, tensor: int, exposed: object) -> None:
        """Count a tensor's memory until ``exposed``, which refers to it, is gone."""
        self._allocations.lend(self.arrays[tensor], exposed)

    def hold_answer(self, tensor: int, elements: memoryview) -> None:
        """Count elements that wait to be sent until nothing refers to them.

        Raises ``QuotaExceeded`` where they are a copy for which there is no room.
        """
        owner = elements.obj
        if self._backend.reads_in_place and tensor in self.arrays:
            array = self.arrays[tensor]
            if self._allocations.shares(array, owner):
                self._allocations.lend(array, owner)
                return
        hold_while_alive(self._answers, owner, elements.nbytes)

    def store_shared(self, tensor: int, shared: Any) -> None:
        """Store what was uploaded, or what another session shared, under a tensor's id.

        Raises ``QuotaExceeded``.
        """
        self.store(tensor, self._session.adopt(shared))

    def begin_upload(self, tensor: int, spec: TensorSpec, byte_count: int) -> Uploading:
        """Reserve memory for a tensor that arrives in chunks.

        Raises ``QuotaExceeded`` and ``OutOfMemory``, and ``ProtocolViolation`` where the byte count
        is not that of the shape and dtype.
        """
        if byte_count != spec.nbytes:
            raise ProtocolViolation(f"{spec} has {spec.nbytes:,} bytes, not {byte_count:,}")
        self.forget(tensor)
        size = memory_bytes(spec)
        self._take(size)
        try:
            upload = self._backend.empty(spec)
        except DeviceLost:
            self._quota.give_back(size, 1)
            raise
        except MemoryError:
            self._quota.give_back(size, 1)
            raise OutOfMemory(f"no room for {spec} ({size:,} bytes)") from None
        slot = Uploading(spec, upload)
        self.slots[tensor] = slot
        return slot

    def begin_fetch(self, tensor: int, slot: InFlight) -> None:
        """Reserve room for a tensor that comes from another session or server.

        Raises ``QuotaExceeded``.
        """
        self.forget(tensor)
        self._fetches.begin(slot)
        self._quota.take_slot(len(self.slots))
        self.slots[tensor] = slot

    def _take(self, size: int) -> None:
        refusal = self._quota.refusal([size])
        if refusal is not None:
            raise refusal
        self._quota.take(size, 1)

    def finish_upload(self, tensor: int, slot: Uploading) -> None:
        """Replace a complete upload by its array.

        Raises ``MemoryError`` and ``DeviceLost``; then the upload stays.
        """
        shared = self._backend.finished(slot.upload, slot.spec.dtype)
        array = self._session.adopt(shared)
        del self.slots[tensor]
        self.arrays[tensor] = array

    def refused_upload(self, tensor: int) -> bool:
        """Whether chunks of this tensor may still come although it is no upload: it was refused, or
        dropped while they were on their way."""
        return tensor not in self.arrays

    def slot(self, tensor: int) -> Slot | None:
        """Return the slot under a tensor's id, ``None`` for an array or nothing."""
        return self.slots.get(tensor)

    def read(self, tensor: int, spec: TensorSpec) -> Any:
        """Return the array of a tensor of this shape. Raises like ``array``, and ``DeviceLost``."""
        if self.lost is not None:
            raise self.lost
        array = self.array(tensor)
        if tuple(array.shape) != array_shape(spec):
            raise UnknownTensor(
                f"tensor {tensor} has the shape {list(array.shape)}, not {list(array_shape(spec))}"
            )
        return array

    def settle(self) -> None:
        """Wait for every tensor that is on its way; failures stay.

        Raises ``DeviceLost``.
        """
        if self.lost is not None:
            raise self.lost
        for tensor, slot in [*self.slots.items()]:
            if isinstance(slot, InFlight):
                try:
                    self.array(tensor)
                except OperationFailed as failure:
                    self.store(tensor, failure)

    def has_slots(self) -> bool:
        """Whether some tensor is failed or on its way, so that using it may wait."""
        return bool(self.slots)

    def drop(self, tensors: Iterable[int]) -> None:
        """Free tensors; ids that the session does not have are ignored."""
        for tensor in tensors:
            self.forget(tensor)

    def clear(self) -> None:
        """Free everything, also what is still arriving."""
        self.drop([*self.arrays, *self.slots])
        self._fetches.end()

    def forget(self, tensor: int) -> None:
        """Free a tensor if the session has it."""
        array = self.arrays.pop(tensor, None)
        if array is not None:
            if self._records:
                self._allocations.forget(array)
            else:
                self._quota.give_back(self._backend.nbytes(array), 1)
        elif self.slots:
            slot = self.slots.pop(tensor, None)
            if isinstance(slot, Uploading):
                self._quota.give_back(memory_bytes(slot.spec), 1)
            elif isinstance(slot, InFlight):
                self._fetches.drop(slot)
