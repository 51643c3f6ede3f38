"""Which tensors does a session have, and what does an operation do to them?

No asyncio and no bytes here: signatures, arrays, failures. An operation that fails marks its
outputs as failed; one that uses a failed tensor passes the first failure on; only a read raises
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from burn_remote_protocol.errors import (
    OperationFailed,
    OutOfMemory,
    ProtocolViolation,
    UnknownTensor,
)
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.access.quota import Quota
from burn_remote_server.backends.interface import Backend, BackendSession, array_shape
from burn_remote_server.custom import NO_OPERATIONS, CustomOperations
from burn_remote_server.execution.fetches import Fetches
from burn_remote_server.execution.ownership import held_once
from burn_remote_server.execution.plans import (
    Plan,
    as_failure,
    memory_bytes,
    timed,
    too_costly,
    within,
)
from burn_remote_server.execution.slots import InFlight, Slot, Uploading

__all__ = ["Interpreter"]

# Signatures that arrive without a number (Burn's dialect) are prepared once and kept up to this
# many. Larger: more memory per session (about 2 KiB each). Smaller: long programs prepare again.
PLAN_CACHE_LENGTH: Final = 4096

# Estimated elements from which on an operation's time is looked at, about a millisecond's work.
# Larger: long operations go unseen where the estimate is wrong. Smaller: small ones pay for it.
TIMED_COST: Final = 1_000_000


class Interpreter:
    """Execute the operations of one session, one after the other, on one backend.

    Not thread-safe: the session's worker, or whoever stands in for it, is the only caller.
    ``report`` is told of each operation that failed by itself (not of those that only pass a
    failure on).
    """

    def __init__(
        self,
        backend: Backend,
        quota: Quota,
        report: Callable[[tuple[int, ...], OperationFailed], None],
        *,
        max_operation_cost: int | None = None,
        max_operation_seconds: float | None = None,
        max_fetches: int | None = None,
        custom: CustomOperations = NO_OPERATIONS,
    ) -> None:
        self.backend = backend
        self._max_operation_cost = max_operation_cost
        self._max_operation_seconds = max_operation_seconds
        self._fetches = Fetches(quota, max_fetches)
        self.quota = quota
        self.session: BackendSession = backend.open_session(custom)
        self._report = report
        # Ready arrays and everything else are kept apart, so that the usual case is one lookup that
        # cannot hand a kernel something that is no array.
        self._arrays: dict[int, Any] = {}
        self._slots: dict[int, Slot] = {}
        self.numbered: dict[int, Plan] = {}
        self._is_cleared = False
        # By identity: the decoder returns the same object for the same signature, and the plan that
        # stands here keeps that object alive.
        self._plans: dict[int, Plan] = {}
        self.executed = 0

    def __len__(self) -> int:
        return len(self._arrays) + len(self._slots)

    # -- signatures ---------------------------------------------------------------------------

    def define(self, number: int, signature: Signature) -> None:
        """Give a signature a number, replacing the one that had it."""
        self.numbered[number] = self._prepare(signature)

    def _prepare(self, signature: Signature) -> Plan:
        plan = Plan(signature, self.session)
        refusal = self.quota.refusal(memory_bytes(spec) for spec in signature.outputs)
        plan.error = plan.error or refusal or too_costly(plan.cost, self._max_operation_cost)
        if plan.workspace_bytes:
            plan.run = within(plan.run, plan.workspace_bytes, self.quota)
        if self._max_operation_seconds is not None and plan.cost >= TIMED_COST:
            plan.run = timed(plan.run, self._max_operation_seconds)
            plan.run_into = timed(plan.run_into, self._max_operation_seconds)
        return plan

    # -- operations ---------------------------------------------------------------------------

    def execute(self, operation: Operation) -> None:
        """Run an operation that came in full."""
        signature, tensors = operation
        if signature.row.family == "Init":
            return  # Burn's note that an upload is complete; nothing is left to do
        if signature.row.family == "Drop":
            self.drop(tensors)
            return
        plan = self._plans.get(id(signature))
        if plan is None:
            plan = self._prepare(signature)
            if len(self._plans) >= PLAN_CACHE_LENGTH:
                self._plans.pop(next(iter(self._plans)))
            self._plans[id(signature)] = plan
        self.invoke(plan, tensors)

    def known_plan(self, signature: Signature) -> Plan | None:
        """Return the plan of a signature that was executed before."""
        return self._plans.get(id(signature))

    def invoke(self, plan: Plan, tensors: tuple[int, ...], dying: Sequence[int] = ()) -> None:
        """Run a prepared operation on tensors: the ids of its inputs, then those of its outputs.

        ``dying`` are tensors that the session drops next, whatever comes of the operation.
        """
        self.executed += 1
        arrays = self._arrays
        count = plan.input_count
        try:
            inputs = [arrays[tensor] for tensor in tensors[:count]]
        except KeyError:
            self._invoke_waiting(plan, tensors)
            return
        if plan.reusable:
            self._run(plan, tensors, inputs, self._reusing(plan, tensors, inputs, dying))
        else:
            self._run(plan, tensors, inputs, plan.run)

    def _reusing(
        self, plan: Plan, tensors: tuple[int, ...], inputs: list[Any], dying: Sequence[int]
    ) -> Callable[..., Any]:
        """Return the plan's kernel, with its result in the memory of an input that dies with the
        operation where there is one that nothing else refers to."""
        for position in plan.reusable:
            if (
                (position in plan.last_uses or tensors[position] in dying)
                and held_once(inputs, position)
                and self.backend.owns_memory(inputs[position])
            ):
                return partial(plan.run_into, out=inputs[position])
        return plan.run

    def _invoke_waiting(self, plan: Plan, tensors: tuple[int, ...]) -> None:
        """Run an operation some of whose inputs are no plain arrays yet, or never will be."""
        try:
            inputs = [self._array(tensor) for tensor in tensors[: plan.input_count]]
        except OperationFailed as failure:
            if not failure.operation:
                self._fail(plan, tensors, failure)
            else:
                self._store_failure(plan, tensors, failure)
            return
        self._run(plan, tensors, inputs, plan.run)

    def _run(
        self,
        plan: Plan,
        tensors: tuple[int, ...],
        inputs: list[Any],
        run: Callable[..., Any],
    ) -> None:
        try:
            if plan.error is not None:
                raise plan.error
            for array, (shape, dtype) in zip(inputs, plan.expected):  # noqa: B905 - equal lengths
                if array.shape != shape or array.dtype != dtype:
                    raise plan.mismatch(inputs)
            self.quota.take(plan.output_bytes, plan.output_count)
            try:
                results = run(*inputs)
            except BaseException as error:
                results = self._run_again(plan, run, inputs, error)
        except Exception as error:  # whatever a kernel raises becomes the outputs' failure
            self._fail(plan, tensors, error)
            return
        arrays = self._arrays
        if plan.gives_one:
            tensor = tensors[-1]
            if tensor in arrays or self._slots:
                self._forget(tensor)
            arrays[tensor] = results
        else:
            present = (result for result in results if result is not None)
            for tensor, result in zip(tensors[plan.input_count :], present, strict=True):
                self._forget(tensor)
                arrays[tensor] = result
        for position in plan.last_uses:
            self._forget(tensors[position])

    def _run_again(
        self, plan: Plan, run: Callable[..., Any], inputs: list[Any], error: BaseException
    ) -> Any:
        """Return the results of an operation for which there was no room, or raise its error."""
        try:
            # One that writes over an input cannot be repeated.
            if not isinstance(error, MemoryError) or run is not plan.run:
                raise error
            # What the device keeps to use again may be all that is missing.
            self.backend.memory_cleanup()
            return plan.run(*inputs)
        except BaseException:
            self.quota.give_back(plan.output_bytes, plan.output_count)
            raise

    def _fail(self, plan: Plan, tensors: tuple[int, ...], error: Exception) -> None:
        outputs = tensors[plan.input_count :]
        failure = as_failure(error, plan, outputs[0] if outputs else None)
        self._store_failure(plan, tensors, failure)
        self._report(outputs, failure)

    def _store_failure(
        self, plan: Plan, tensors: tuple[int, ...], failure: OperationFailed
    ) -> None:
        for position in plan.last_uses:
            self._forget(tensors[position])
        for tensor in tensors[plan.input_count :]:
            self.store(tensor, failure)

    # -- tensors ------------------------------------------------------------------------------

    def _array(self, tensor: int) -> Any:
        array = self._arrays.get(tensor)
        if array is not None:
            return array
        slot = self._slots.get(tensor)
        if slot is None:
            raise UnknownTensor(f"this session has no tensor {tensor}")
        if isinstance(slot, Uploading):
            raise UnknownTensor(
                f"tensor {tensor} is still being uploaded: "
                f"{slot.received:,} of {slot.size:,} bytes have arrived"
            )
        if isinstance(slot, OperationFailed):
            raise slot
        array = self.session.adopt(slot.array())
        self.store(tensor, array)
        return array

    def store(self, tensor: int, value: Any) -> None:
        """Put an array or a slot in a tensor's place, freeing what was there.

        Raises ``QuotaExceeded`` for an array that the session may not have.
        """
        self._forget(tensor)
        if isinstance(value, Slot):
            self.quota.take_slot(len(self._slots))
            self._slots[tensor] = value
        else:
            self.quota.take(self.backend.nbytes(value), 1)
            self._arrays[tensor] = value

    def store_shared(self, tensor: int, shared: Any) -> None:
        """Put what was uploaded, or another session shared, in a tensor's place.

        Raises ``QuotaExceeded``.
        """
        self.store(tensor, self.session.adopt(shared))

    def begin_upload(self, tensor: int, spec: TensorSpec, byte_count: int) -> Uploading:
        """Make room for a tensor that arrives in chunks.

        Raises ``QuotaExceeded`` and ``OutOfMemory``, and ``ProtocolViolation`` where the byte count
        is not that of the shape and dtype.
        """
        if byte_count != spec.nbytes:
            raise ProtocolViolation(f"{spec} has {spec.nbytes:,} bytes, not {byte_count:,}")
        self._forget(tensor)
        size = memory_bytes(spec)
        self._take(size)
        try:
            upload = self.backend.empty(spec)
        except MemoryError:
            self.quota.give_back(size, 1)
            raise OutOfMemory(f"no room for {spec} ({size:,} bytes)") from None
        slot = Uploading(spec, upload)
        self._slots[tensor] = slot
        return slot

    def begin_fetch(self, tensor: int, slot: InFlight) -> None:
        """Put a tensor that comes from another server in its place, with room for it reserved.

        Raises ``QuotaExceeded``.
        """
        self._forget(tensor)
        self._fetches.begin(slot)
        self.quota.take_slot(len(self._slots))
        self._slots[tensor] = slot

    def _take(self, size: int) -> None:
        refusal = self.quota.refusal([size])
        if refusal is not None:
            raise refusal
        self.quota.take(size, 1)

    def finish_upload(self, tensor: int, slot: Uploading) -> None:
        """Put the array that has arrived whole in its tensor's place."""
        del self._slots[tensor]
        shared = self.backend.finished(slot.upload, slot.spec.dtype)
        self._arrays[tensor] = self.session.adopt(shared)

    def refused_upload(self, tensor: int) -> bool:
        """Whether chunks of this tensor may still come although it is no upload (any more): it was
        refused, or dropped while they were on their way."""
        return tensor not in self._arrays

    def slot(self, tensor: int) -> Slot | None:
        """Return what stands in a tensor's place, ``None`` for an array or nothing."""
        return self._slots.get(tensor)

    def read(self, tensor: int, spec: TensorSpec) -> Any:
        """Return a tensor's array, waiting for it if it is on its way.

        Raises the ``OperationFailed`` that stands in its place, and ``UnknownTensor``.
        """
        array = self._array(tensor)
        if tuple(array.shape) != array_shape(spec):
            raise UnknownTensor(
                f"tensor {tensor} has the shape {list(array.shape)}, not {list(array_shape(spec))}"
            )
        return array

    def settle(self) -> None:
        """Wait for every tensor that is on its way; failures stay in their places."""
        for tensor, slot in [*self._slots.items()]:
            if isinstance(slot, InFlight):
                try:
                    self._array(tensor)
                except OperationFailed as failure:
                    self.store(tensor, failure)

    def has_slots(self) -> bool:
        """Whether some tensor is failed or on its way, so that using it may wait."""
        return bool(self._slots)

    def drop(self, tensors: Iterable[int]) -> None:
        """Free tensors; ids that the session does not have are ignored."""
        for tensor in tensors:
            self._forget(tensor)

    def clear(self) -> None:
        """Free everything, also what was prepared. A second time does nothing."""
        if self._is_cleared:
            return
        self._is_cleared = True
        self.drop([*self._arrays, *self._slots])
        self.numbered.clear()
        self._plans.clear()
        self._fetches.end()
        self.quota.end()
        self.session.close()

    def _forget(self, tensor: int) -> None:
        array = self._arrays.pop(tensor, None)
        if array is not None:
            self.quota.give_back(self.backend.nbytes(array), 1)
        elif self._slots:
            slot = self._slots.pop(tensor, None)
            if isinstance(slot, Uploading):
                self.quota.give_back(memory_bytes(slot.spec), 1)
            elif isinstance(slot, InFlight):
                self._fetches.drop(slot)

    def seed(self, seed: int) -> None:
        """Set the seed of the session's random numbers."""
        self.session.seed(seed)
