"""The engines of native servers, which carry out collectives among themselves.

The client issues one task for each member and dtype. The servers exchange the elements directly, on
threads of their own: over connections in a ring, between GPUs by NCCL or, if all members are on one
server, in its memory. The engine ``moves`` carries out what servers do not: parts of different
sizes, and quantized tensors.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias, final
from weakref import WeakKeyDictionary

from burn_remote.distributed import collective_engine
from burn_remote.distributed.collective_engine import Bucket
from burn_remote.distributed.moves_engine import MovesEngine
from burn_remote.distributed.reduce_operations import ReduceOperation
from burn_remote.functions.creation import zeros
from burn_remote.functions.device_class import Device
from burn_remote.functions.tensor import Tensor
from burn_remote.runner.interface import Session, TensorHandle
from burn_remote.runner.pending import Pending
from burn_remote_protocol.collectives import (
    GROUP_SECRET_BYTES,
    CollectiveCall,
    CollectiveKind,
    EngineKind,
    GroupSpec,
    Reduction,
)
from burn_remote_protocol.dtypes import Category, DType
from burn_remote_protocol.errors import (
    BurnRemoteError,
    CollectiveFailed,
    ConnectionLost,
    Unsupported,
    UsageError,
)
from burn_remote_protocol.interrupted_finalizers import repeatable
from burn_remote_protocol.links.addresses import parse_address
from burn_remote_protocol.tensors import TensorData, TensorSpec

__all__ = ["RingEngine"]

_REDUCTIONS: Final = {
    ReduceOperation.SUM: Reduction.SUM,
    ReduceOperation.MEAN: Reduction.MEAN,
    ReduceOperation.MIN: Reduction.MIN,
    ReduceOperation.MAX: Reduction.MAX,
    ReduceOperation.PRODUCT: Reduction.PRODUCT,
}


# The most tensors of one call. A list on the wire has at most 4,096 elements, and a server decodes
# a task without a pause.
MAX_TENSORS: Final = 1024

# Groups whose objects were garbage-collected without ``close``, by session. The session leaves them
# when it joins its next one. They are known by their specs, not their numbers: a finalizer that
# Ctrl-C interrupts is repeated, and another group may have the number by then.
_forgotten: Final[WeakKeyDictionary[Session, deque[GroupSpec]]] = WeakKeyDictionary()


class _Part(NamedTuple):
    """A call of one member, and the places of its outputs in the bucket of its results."""

    call: CollectiveCall
    inputs: tuple[TensorHandle, ...]
    places: tuple[int, ...]


# Reads that are done, each with its member.
_Arrived: TypeAlias = queue.SimpleQueue[tuple[int, Pending[TensorData]]]


@final
class RingEngine:
    """Has the members' servers carry out collectives; see ``Engine``.

    The constructor makes each device a member of a group of sessions, without waiting. ``kind`` is
    the engine of the servers; by default the fastest one that they all have. Raises ``Unsupported``
    if a device cannot be a member, or does not have the engine.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        bound_seconds: float,
        issue_seconds: float,
        kind: EngineKind | None = None,
    ) -> None:
        self._devices = tuple(devices)
        self._moves: Final = MovesEngine(devices)
        # Noted before a member joins: Ctrl-C may come between joining and noting the number.
        self._specs: list[GroupSpec] = []
        # The numbers of the group in the members' sessions.
        self._numbers: list[int] = []
        self._forgotten: list[deque[GroupSpec]] = []
        # Reductions that not all members have joined, in the order of their first parts.
        self._open: Final[list[RingReduction]] = []
        # A collective of all members that is being issued: how many collectives each had issued
        # before, and their parts.
        self._begun: tuple[list[int], list[list[_Part]]] | None = None
        for device in devices:
            # All devices are checked before the first one joins: a member connects as soon as it
            # has joined.
            if not device.session.welcome.limits.get("groups"):
                raise Unsupported(f"{device} carries out no collectives with others")
        self._kind: Final = _chosen(devices, kind)
        self._forgotten = [_forgotten.setdefault(device.session, deque()) for device in devices]
        for device, forgotten in zip(devices, self._forgotten, strict=True):
            for spec in [*forgotten]:
                _leave(device, spec)
                with contextlib.suppress(ValueError):  # another thread did
                    forgotten.remove(spec)
        secret = secrets.token_bytes(GROUP_SECRET_BYTES)
        addresses = tuple([device.session.peer_address for device in devices])
        try:
            for rank, device in enumerate(devices):
                spec = GroupSpec(secret, rank, addresses, bound_seconds, issue_seconds, self._kind)
                self._specs.append(spec)
                self._numbers.append(device.runners.join_group(spec))
        except BaseException:  # also Ctrl-C: the members that have joined leave the group
            self.close()
            raise

    @repeatable
    def __del__(self) -> None:
        # May run in any thread, even one that holds a session's lock: nothing is issued here.
        known = vars(self)  # an interrupted constructor may not have set them
        for forgotten, spec in zip(
            known.get("_forgotten", ()), known.get("_specs", ()), strict=False
        ):
            forgotten.append(spec)

    @property
    def name(self) -> str:
        """The name of the servers' engine."""
        return str(self._kind)

    def all_reduce(self, operation: ReduceOperation) -> collective_engine.Reduction:
        """Begin a reduction whose results go to all members."""
        return RingReduction(self, CollectiveKind.ALL_REDUCE, operation)

    def reduce_scatter(self, operation: ReduceOperation) -> collective_engine.Reduction:
        """Begin a reduction that gives each member one part along axis 0 of each tensor."""
        return RingReduction(
            self,
            CollectiveKind.REDUCE_SCATTER,
            operation,
            by_moves=lambda: self._moves.reduce_scatter(operation),
        )

    def reduce(self, operation: ReduceOperation, root: int) -> collective_engine.Reduction:
        """Begin a reduction whose results go to one member; the others get empty buckets."""
        return RingReduction(self, CollectiveKind.REDUCE, operation, root=root)

    def all_gather(self, buckets: Sequence[Bucket]) -> list[Bucket]:
        """Give each member the tensors of all, joined along axis 0 in the order of the members."""
        if not _are_equal(buckets):
            return self._moves.all_gather(buckets)
        return self._issue_all(CollectiveKind.ALL_GATHER, buckets)

    def broadcast(self, bucket: Bucket, root: int) -> list[Bucket]:
        """Give each member the tensors of one."""
        if any(x.dtype.category is Category.QUANTIZED for x in bucket):
            return self._moves.broadcast(bucket, root)
        return self._issue_all(CollectiveKind.BROADCAST, [bucket] * len(self._devices), root)

    def all_to_all(self, buckets: Sequence[Bucket]) -> list[Bucket]:
        """Give each member its part of the tensors of all, joined along axis 0."""
        if not _are_equal(buckets) or not self.cuts_evenly(buckets[0]):
            return self._moves.all_to_all(buckets)
        return self._issue_all(CollectiveKind.ALL_TO_ALL, buckets)

    def barrier(self) -> None:
        """Have later operations of each member run after all earlier ones of all members."""
        # All members begin before one waits: local devices execute in this thread.
        for (token,) in self._issue_all(CollectiveKind.BARRIER, [[]] * len(self._devices)):
            # The session waits at this operation.
            _ = -token

    def failure(self) -> CollectiveFailed | None:
        """Return the first failure that a member reports, or ``None`` if there is none."""
        arrived: _Arrived = queue.SimpleQueue()
        # Errors of single devices. If a member's server failed, another member usually reports
        # that, which says more; but the member may have done its part of all collectives before.
        errors: list[tuple[int, BurnRemoteError]] = []
        tokens: list[tuple[int, TensorHandle]] = []
        barrier = _Part(CollectiveCall(CollectiveKind.BARRIER), (), (0,))
        with self.complete([[barrier]] * len(self._devices)):
            for rank, device in enumerate(self._devices):
                try:
                    outputs = device.runners.collective(self._numbers[rank], barrier.call, ())
                    tokens += [(rank, token) for token in outputs]
                except BurnRemoteError as error:
                    errors.append((rank, error))
        asked = 0
        for rank, token in tokens:
            try:
                read = self._devices[rank].runners.read_tensor_async(token)
                read.on_done(partial(_put, arrived, rank))
                asked += 1  # it arrives, with an error, also if the next call raises one
                read.attend()
            except BurnRemoteError as error:
                errors.append((rank, error))
        # The servers bound how long a barrier takes, and sessions how long they try to resume.
        for _ in range(asked):
            rank, read = arrived.get()
            try:
                read.result()
            except CollectiveFailed as error:
                return error
            except BurnRemoteError as error:
                errors.append((rank, error))
        return self._lost(errors)

    def _lost(self, errors: Sequence[tuple[int, BurnRemoteError]]) -> CollectiveFailed | None:
        """Return the failure of the first member whose session is lost; raise any other error."""
        for _, error in errors:
            if not isinstance(error, ConnectionLost):
                raise error
        if not errors:
            return None
        rank, error = errors[0]
        address = self._specs[rank].addresses[rank]
        return CollectiveFailed(
            f"member {rank} at {address} is lost: {error}", member=rank, address=address
        )

    def close(self) -> None:
        """Leave the group once its collectives are done."""
        for device, spec in zip(self._devices, self._specs, strict=False):
            with contextlib.suppress(BurnRemoteError):  # a session that ended has left its groups
                _leave(device, spec)
        self._begun, self._specs, self._numbers = None, [], []
        self._open.clear()

    # -- for reductions -----------------------------------------------------------------------

    @property
    def devices(self) -> Sequence[Device]:
        """The devices of the members."""
        return self._devices

    def cuts_evenly(self, bucket: Bucket) -> bool:
        """Return whether axis 0 of each tensor has equal parts for all members."""
        return all(x.shape[0] % len(self._devices) == 0 for x in bucket)

    def parts(
        self,
        kind: CollectiveKind,
        member: int,
        bucket: Bucket,
        *,
        operation: ReduceOperation = ReduceOperation.SUM,
        root: int = 0,
    ) -> list[_Part]:
        """Return a member's part of a collective: a call for each dtype and ``MAX_TENSORS``.

        ``bucket`` has the member's inputs. For a broadcast, only the root has inputs; for the
        other members, only the shapes and dtypes in ``bucket`` count.
        """
        if kind is CollectiveKind.BARRIER:
            return [_Part(CollectiveCall(kind), (), (0,))]
        places: dict[DType, list[int]] = {}
        for place, x in enumerate(bucket):
            places.setdefault(x.dtype, []).append(place)
        parts: list[_Part] = []
        for chosen in [
            several[at : at + MAX_TENSORS]
            for several in places.values()
            for at in range(0, len(several), MAX_TENSORS)
        ]:
            specs = tuple([bucket[place].handle.spec for place in chosen])
            call = CollectiveCall(kind, specs, _REDUCTIONS[operation], root)
            is_given = kind is not CollectiveKind.BROADCAST or member == root
            inputs = tuple([bucket[place].handle for place in chosen]) if is_given else ()
            # Other members than the root of a reduction have an output that only says that they
            # are done.
            has_results = kind is not CollectiveKind.REDUCE or member == root
            parts.append(_Part(call, inputs, tuple(chosen) if has_results else ()))
        return parts

    def issue(self, member: int, parts: Sequence[_Part]) -> Bucket:
        """Issue a member's part of a collective; return its outputs."""
        runners, number = self._devices[member].runners, self._numbers[member]
        made: dict[int, Tensor] = {}
        for part in parts:
            outputs = runners.collective(number, part.call, part.inputs)
            made.update(zip(part.places, map(Tensor, outputs), strict=bool(part.places)))
        return [made[place] for place in sorted(made)]

    def issued(self, member: int) -> int:
        """Return how many collectives a member has issued, as ``Session.collectives_issued``."""
        if not self._numbers:
            raise UsageError("the group was closed before all members had given their tensors")
        session: Session = self._devices[member].session
        return session.collectives_issued(self._numbers[member])

    def issue_rest(self, member: int, before: int, parts: Sequence[_Part]) -> None:
        """Issue the parts of a collective that a member has not issued yet.

        ``before`` is how many collectives it had issued before this one.
        """
        self.issue(member, parts[self.issued(member) - before :])

    @contextlib.contextmanager
    def complete(self, parts: list[list[_Part]]) -> Iterator[None]:
        """Issue, at the end of the block, the parts of a collective that the block has not issued.

        Without this, Ctrl-C between two members would make one member's next collective meet the
        interrupted one of the others, and combine their elements.
        """
        self.end_open_reductions()
        before = [self.issued(member) for member in range(len(parts))]
        self._begun = (before, parts)
        try:
            yield
        finally:
            self.complete_interrupted()

    def complete_interrupted(self) -> None:
        """Issue the rest of an interrupted collective. Call this before any other collective."""
        if self._begun is None:
            return
        before, parts = self._begun
        has_begun = any(self.issued(member) != count for member, count in enumerate(before))
        for member, count in enumerate(before if has_begun else ()):
            with contextlib.suppress(BurnRemoteError):  # the other members learn of its end
                self.issue_rest(member, count, parts[member])
        self._begun = None

    def note_open(self, reduction: RingReduction) -> None:
        """Remember a reduction until all members have joined it."""
        if reduction not in self._open:
            self._open.append(reduction)

    def note_done(self, reduction: RingReduction) -> None:
        """Forget a reduction that all members have joined."""
        if reduction in self._open:
            self._open.remove(reduction)

    def end_open_reductions(self) -> None:
        """End reductions that were interrupted before all members joined or they were abandoned.

        The parts of their members would meet those of the next collective.
        """
        self.complete_interrupted()
        for reduction in [*self._open]:
            reduction.abandon()

    def _issue_all(
        self, kind: CollectiveKind, buckets: Sequence[Bucket], root: int = 0
    ) -> list[Bucket]:
        """Issue a collective of all members; return their outputs."""
        parts = [
            self.parts(kind, member, bucket, root=root) for member, bucket in enumerate(buckets)
        ]
        with self.complete(parts):
            return [self.issue(member, part) for member, part in enumerate(parts)]


@final
class RingReduction:
    """A reduction that the servers carry out; see ``Reduction``.

    ``by_moves`` begins the same reduction by moves, for tensors without equal parts.
    """

    def __init__(
        self,
        ring: RingEngine,
        kind: CollectiveKind,
        operation: ReduceOperation,
        *,
        root: int = 0,
        by_moves: Callable[[], collective_engine.Reduction] | None = None,
    ) -> None:
        self._ring: Final = ring
        self._kind: Final = kind
        self._operation: Final = operation
        self._root: Final = root
        self._by_moves: Final = by_moves
        self._moves: collective_engine.Reduction | None = None
        self._specs: list[TensorSpec] = []
        # For each member: how many collectives it had issued before, and its parts.
        self._given: Final[dict[int, tuple[int, list[_Part]]]] = {}
        self._outputs: dict[int, Bucket] = {}

    def give(self, member: int, bucket: Bucket) -> None:
        """Issue the member's part."""
        if self._by_moves is not None and not self._ring.cuts_evenly(bucket):
            if self._moves is None:
                self._moves = self._by_moves()
            self._moves.give(member, bucket)
            return
        ring = self._ring
        ring.complete_interrupted()
        ring.note_open(self)
        self._specs = [x.handle.spec for x in bucket]
        parts = ring.parts(self._kind, member, bucket, operation=self._operation, root=self._root)
        self._given[member] = (ring.issued(member), parts)
        self._outputs[member] = ring.issue(member, parts)

    def results(self) -> list[Bucket]:
        """Return the bucket of each member."""
        if self._moves is not None:
            return self._moves.results()
        made = [self._outputs[member] for member in range(len(self._ring.devices))]
        self._ring.note_done(self)
        return made

    def abandon(self) -> None:
        """Give zeros for the missing members, because the others wait for their parts."""
        if self._moves is not None:
            self._moves.abandon()
            return
        for member, device in enumerate(self._ring.devices if self._given else ()):
            with contextlib.suppress(BurnRemoteError):
                if member in self._given:  # an interrupt may have come between its dtypes
                    self._ring.issue_rest(member, *self._given[member])
                    continue
                missing = [zeros(one.shape, dtype=one.dtype, device=device) for one in self._specs]
                self.give(member, missing)
        self._outputs.clear()
        self._ring.note_done(self)


def _put(arrived: _Arrived, member: int, read: Pending[TensorData]) -> None:
    arrived.put((member, read))


def _leave(device: Device, spec: GroupSpec) -> None:
    """Leave the group that a device joined with ``spec``, unless it has left it."""
    number = device.session.group_number(spec)
    if number is not None:
        device.runners.leave_group(number)


def _chosen(devices: Sequence[Device], wanted: EngineKind | None) -> EngineKind:
    """Return the wanted engine, or the fastest one. Raises ``Unsupported`` if a device lacks it."""
    welcomes = [device.session.welcome for device in devices]
    bits = [welcome.limits.get("group_engines", _RING_BITS) for welcome in welcomes]
    local = [device for device in devices if device.session.transfer_domain == "local"]
    if local and len(local) < len(devices):
        raise Unsupported(
            f"{local[0]} is in this process, where the servers of other members cannot reach it; "
            "the engine 'moves' passes its elements through this process"
        )
    servers = {"this process"} if local else {_server(welcome.peer_address) for welcome in welcomes}
    if wanted is None:
        if all(map(EngineKind.NCCL.is_among, bits)):
            return EngineKind.NCCL
        is_fit = len(servers) == 1 and all(map(EngineKind.MEMORY.is_among, bits))
        return EngineKind.MEMORY if is_fit else EngineKind.RING
    for device, has in zip(devices, bits, strict=True):
        if not wanted.is_among(has):
            advice = "" if local or wanted is EngineKind.NCCL else ": update the server"
            raise Unsupported(f"{device} does not have this engine{advice}")
    if wanted is EngineKind.MEMORY and len(servers) > 1:
        raise Unsupported(f"the members are on {len(servers)} servers")
    return wanted


def _server(peer_address: str) -> tuple[str, int]:
    address = parse_address(peer_address)
    return address.host, address.port


# Servers that announce no engines have this one.
_RING_BITS: Final = EngineKind.bits([EngineKind.RING])


def _are_equal(buckets: Sequence[Bucket]) -> bool:
    """Return whether all members have the same shapes and dtypes."""
    specs = [[x.handle.spec for x in bucket] for bucket in buckets]
    return all(one == specs[0] for one in specs)
