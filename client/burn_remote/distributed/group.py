"""``Group``: a set of devices, and the collectives of tensors on them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from burn_remote.arguments.containers import leaves, named_leaves
from burn_remote.arguments.numbers import real_number
from burn_remote.diagnostics.advice import group_attribute_advice
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.distributed.collective_engine import Bucket, Engine, Reduction
from burn_remote.distributed.member_values import (
    MemberValues,
    check_place,
    check_tensor,
    member_values,
    rebuilt,
    untracked,
    with_axis,
)
from burn_remote.distributed.moves_engine import MovesEngine
from burn_remote.distributed.reduce_operations import ReduceOperation, checked_operation
from burn_remote.distributed.server_engines import RingEngine
from burn_remote.functions.device_class import AnyDevice, Device, checked_device
from burn_remote.functions.tensor import Tensor
from burn_remote.runner.interface import distinction
from burn_remote.runner.issuing import recording
from burn_remote.runner.pending import sent
from burn_remote_protocol.collectives import ISSUE_SECONDS, EngineKind
from burn_remote_protocol.errors import (
    ArgumentMismatch,
    ClosedDevice,
    CollectiveFailed,
    DeviceMismatch,
    Unsupported,
    UsageError,
    shown,
)

if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["Group", "end_open_reductions", "gradient_exchange"]

SUM: Final = ReduceOperation.SUM

# Servers send four heartbeats in this time.
TIMEOUT_SECONDS: Final = 10.0

_numbers: Final = itertools.count(1)


class Group:
    """Devices that exchange tensors by collectives: ``with Group([device, other]) as group: …``.

    A collective takes a list with one value for each member, in the order of ``devices``, and
    returns such a list. A value is a tensor on the member's device, or nested containers of such
    tensors (a *bucket*), which are sent together; the values of all members have the same
    containers. One call issues the operations of all members, so members cannot disagree. No call
    waits, except for tensors on devices of different kinds, which pass through this process.

    All members get the same bits. float16 and bfloat16 are combined in float32.

    ``name`` appears in errors. A device may be in several groups. Closing a group leaves its
    devices open. ``engine`` is ``"nccl"``, ``"memory"``, ``"ring"`` or ``"moves"``; by default, the
    servers carry out collectives if they all can: by NCCL between GPUs if the servers' operators
    allow it, in memory if the members are all in this process or on one server, else in a ring. A
    member has failed if its server sent nothing for ``timeout_seconds``, or if it did not issue its
    part of a collective for ``issue_timeout_seconds`` while another member waited.
    """

    @explained
    def __init__(
        self,
        devices: Iterable[AnyDevice],
        *,
        name: str | None = None,
        engine: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        issue_timeout_seconds: float = ISSUE_SECONDS,
    ) -> None:
        self.devices: Final = _checked_members(devices)
        self.name: Final = f"group-{next(_numbers)}" if name is None else name
        self._is_closed = False
        self._is_exchanging = False  # see ``gradient_exchange``
        self._options: Final[dict[str, Any]] = {
            "engine": engine,
            "timeout_seconds": timeout_seconds,
            "issue_timeout_seconds": issue_timeout_seconds,
        }
        bound_seconds = real_number("timeout_seconds", timeout_seconds)
        issue_seconds = real_number("issue_timeout_seconds", issue_timeout_seconds)
        self._open_engine: Final = partial(
            _opened, wanted=engine, bound_seconds=bound_seconds, issue_seconds=issue_seconds
        )
        self._engine: Engine = self._open_engine(self.devices)

    if not TYPE_CHECKING:  # hidden from type checkers, which must report missing attributes

        def __getattr__(self, name: str) -> NoReturn:
            advice = group_attribute_advice(name, type(self))
            raise AttributeError(f"a group has no attribute {name!r}{advice}", name=name)

    @property
    def engine(self) -> str:
        """The name of the engine that carries out the collectives, such as ``"moves"``."""
        return self._engine.name

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.devices)

    def __len__(self) -> int:
        return len(self.devices)

    def __repr__(self) -> str:
        members = ", ".join(map(str, self.devices))
        return f"<Group {self.name!r} of {members} by {self.engine}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the group; its devices stay open. A second call does nothing."""
        self._is_closed = True
        self._engine.close()

    def rejoin(self) -> None:
        """Make the group usable again after a collective has failed.

        Servers fail all collectives of a group after a failed one. Does not wait. ``without``
        returns a group without lost members.
        """
        self._check_usable("rejoin")
        self._engine.close()
        self._engine = self._open_engine(self.devices)

    def without(self, members: Iterable[int | Device] = ()) -> Group:
        """Close this group; return a group of its other members, with the same name and settings.

        ``members`` may also be given by their positions. Does not wait.
        """
        lost = {self.rank(member) for member in members}
        rest = [device for rank, device in enumerate(self.devices) if rank not in lost]
        self.close()
        return Group(rest, name=self.name, **self._options)

    def failure(self) -> CollectiveFailed | None:
        """Wait until all members have carried out what was issued, or one of them failed.

        Returns the failure, whose ``member`` and ``address`` say which member it was. The other
        members report it, so this does not wait for a lost member. A member also counts as
        failed if its session is lost after its last collective. Returns ``None`` if none failed.

        Raises ``Unsupported`` with the engine ``moves``, which does not know which member failed,
        and the error of a device that failed for another reason.
        """
        self._check_open("failure")
        self._check_idle("failure")
        return None if self.size == 1 else self._engine.failure()

    # -- collectives --------------------------------------------------------------------------

    @explained
    def all_reduce(self, values: Sequence[Any], op: ReduceOperation | str = SUM) -> list[Any]:
        """Return the reduction of the members' values for each member.

        ``op`` is ``"sum"``, ``"mean"``, ``"min"``, ``"max"`` or ``"product"``. Values have the same
        shapes and dtypes. Integers wrap around.
        """
        given = self._values("all_reduce", values)
        operation = checked_operation(op, given.check_alike())
        made = self._reduced(given, lambda: self._engine.all_reduce(operation))
        return given.like(made)

    @explained
    def reduce(
        self, values: Sequence[Any], op: ReduceOperation | str = SUM, *, root: int | Device = 0
    ) -> Any:
        """Return the reduction of the members' values on one member, the ``root``.

        ``root`` is a member or its position. See ``all_reduce``.
        """
        given = self._values("reduce", values)
        operation = checked_operation(op, given.check_alike())
        place = self.rank(root)
        made = self._reduced(given, lambda: self._engine.reduce(operation, place))
        return given.like(made)[place]

    @explained
    def reduce_scatter(self, values: Sequence[Any], op: ReduceOperation | str = SUM) -> list[Any]:
        """Return for each member its part of the reduction along axis 0.

        The parts are those of ``numpy.array_split``: the first ones may be longer by one. See
        ``all_reduce``. Raises ``ShapeMismatch`` for 0-d tensors.
        """
        given = self._values("reduce_scatter", values)
        operation = checked_operation(op, given.check_alike())
        given.check_have_axis()
        made = self._reduced(given, lambda: self._engine.reduce_scatter(operation))
        return given.like(made)

    @explained
    def all_gather(self, values: Sequence[Any]) -> list[Any]:
        """Return the values of all members, joined along axis 0 in their order, for each member.

        The values may differ in their size along axis 0. 0-d tensors become one axis.
        """
        given = self._values("all_gather", values)
        given.check_alike(except_axis=True)
        given.check_movable()
        buckets = [[with_axis(x) for x in bucket] for bucket in given.buckets]
        return given.like(buckets if self.size == 1 else self._engine.all_gather(buckets))

    @explained
    def all_to_all(self, values: Sequence[Any]) -> list[Any]:
        """Cut each value along axis 0 into one part for each member, and exchange them.

        Each member gets its part of the values of all, joined along axis 0 in their order. The
        parts are those of ``numpy.array_split``. The values may differ in their size along axis 0.
        Raises ``ShapeMismatch`` for 0-d tensors.
        """
        given = self._values("all_to_all", values)
        given.check_alike(except_axis=True)
        given.check_movable()
        given.check_have_axis()
        buckets = given.buckets
        return given.like(buckets if self.size == 1 else self._engine.all_to_all(buckets))

    @explained
    def broadcast(self, value: Any, *, root: int | Device | None = None) -> list[Any]:
        """Return the value of one member for each member.

        The value may be of any dtype. The root is the member whose device has the tensors. If
        ``root``, a member or its position, names another one, the call raises ``DeviceMismatch``.
        """
        self._check_usable("broadcast")
        tensors = leaves(value)
        for name, x in named_leaves(value):
            check_tensor("broadcast", "the value", name, x)
        if not tensors:
            return [value for _ in self.devices]
        place = self._rank_of(tensors[0]) if root is None else self.rank(root)
        for name, x in named_leaves(value):
            check_place("broadcast", name, x, place, self.devices, self.name)
        bucket = [untracked("broadcast", x) for x in tensors]
        made = [bucket] if self.size == 1 else self._engine.broadcast(bucket, place)
        return [rebuilt(value, one) for one in made]

    @explained
    def barrier(self) -> None:
        """Have later operations of each member run after all earlier ones of all members.

        The program does not wait; ``sync`` does.
        """
        self._check_usable("barrier")
        if self.size > 1:
            self._engine.barrier()

    def sync(self) -> None:
        """Wait until each member has executed everything issued so far.

        Raises what ``Device.sync`` raises.
        """
        for one in sent([device.runners.sync() for device in self.devices]):
            one.result()

    # -- reductions that the members join one after the other ----------------------------------

    def reduce_buckets(self, op: ReduceOperation = SUM, *, root: int | None = None) -> Reduction:
        """Begin an ``all_reduce``, to which each member gives its bucket when it has it.

        With ``root``, begin a ``reduce``.
        """
        self._check_ready("all_reduce")
        if self.size == 1:
            return LoneReduction()
        return self._engine.all_reduce(op) if root is None else self._engine.reduce(op, root)

    def reduce_scatter_buckets(self, op: ReduceOperation = SUM) -> Reduction:
        """Begin a ``reduce_scatter``, to which each member gives its bucket when it has it."""
        self._check_ready("reduce_scatter")
        return LoneReduction() if self.size == 1 else self._engine.reduce_scatter(op)

    # -- members ------------------------------------------------------------------------------

    def rank(self, member: int | Device) -> int:
        """Return the position of ``member``, which is a device or already a position.

        Raises ``UsageError`` for a device that is no member and a position out of range.
        """
        if isinstance(member, Device):
            for place, device in enumerate(self.devices):
                if device == member:
                    return place
            raise UsageError(f"{member} is no member of {self!r}")
        if isinstance(member, bool) or not isinstance(member, int):
            raise ArgumentMismatch(
                f"a member is one of group.devices or its position, not {shown(member)}"
            )
        if not 0 <= member < self.size:
            raise UsageError(f"{self!r} has the members 0 to {self.size - 1}, not {member}")
        return member

    # -- parts --------------------------------------------------------------------------------

    def _reduced(self, given: MemberValues, begin: Callable[[], Reduction]) -> list[Bucket]:
        if self.size == 1:
            return given.buckets
        end_open_reductions(self)
        reduction = begin()
        try:
            for member, bucket in enumerate(given.buckets):
                reduction.give(member, bucket)
            return reduction.results()
        except BaseException:  # also Ctrl-C: all members have to issue the same collectives
            reduction.abandon()
            raise

    def _check_open(self, name: str) -> None:
        if self._is_closed:
            raise UsageError(f"{name}: {self!r} was closed; make another group of its devices")

    def _check_idle(self, name: str) -> None:
        if self._is_exchanging:
            raise UsageError(
                f"{name}: the members of {self!r} are giving their gradients to a backward pass of "
                "DataParallel; call this before or after it, and not in its loss function, or use "
                "another group of these devices"
            )

    def _check_usable(self, name: str) -> None:
        self._check_ready(name)
        self._check_idle(name)

    def _check_ready(self, name: str) -> None:
        self._check_open(name)
        if recording.runner is not None:
            raise UsageError(
                f"{name} cannot be called inside a compiled function, which runs on one device; "
                "compile the parts before and after it"
            )
        for place, device in enumerate(self.devices):
            if device.runners.closed:
                raise ClosedDevice(
                    f"{name}: member {place} of the group {self.name!r}, {device}, is closed; make "
                    "a group of open devices"
                )

    def _values(self, name: str, values: Any) -> MemberValues:
        self._check_usable(name)
        return member_values(name, values, self.devices, self.name)

    def _rank_of(self, x: Tensor) -> int:
        session = x.handle.client.session
        for place, device in enumerate(self.devices):
            if device.session is session:
                return place
        raise DeviceMismatch(
            f"broadcast: {x.handle.spec} is on {x.device}, which is no member of {self!r}"
            f"{distinction(x.device, *self.devices)}; write x.to(group.devices[0])"
        )


@contextlib.contextmanager
def gradient_exchange(group: Group) -> Iterator[None]:
    """Let members give buckets in the block, and refuse the group's other collectives.

    All members have to issue the same collectives in the same order, so those of one member after
    the other must have no others in between, for example those of a loss function.
    """
    group._check_usable("backward")
    try:
        group._is_exchanging = True
        yield
    finally:
        group._is_exchanging = False


def end_open_reductions(group: Group) -> None:
    """End reductions that Ctrl-C interrupted before all members gave their buckets."""
    if group.size > 1:
        group._engine.end_open_reductions()


class LoneReduction:
    """A reduction in a group of one member; see ``Reduction``."""

    def __init__(self) -> None:
        self._bucket: Bucket = []

    def give(self, member: int, bucket: Bucket) -> None:
        """Keep the bucket."""
        self._bucket = bucket

    def results(self) -> list[Bucket]:
        """Return the bucket."""
        return [self._bucket]

    def abandon(self) -> None:
        """Discard the bucket."""
        self._bucket = []


def _opened(
    devices: Sequence[Device], *, wanted: str | None, bound_seconds: float, issue_seconds: float
) -> Engine:
    """Return the wanted engine; the fastest one that the devices have if none is wanted."""
    if wanted not in (None, MovesEngine.name, *_SERVERS_ENGINES):
        names = ", ".join(map(repr, [*_SERVERS_ENGINES]))
        raise ArgumentMismatch(f"engine must be {names} or 'moves', not {shown(wanted)}")
    if wanted != MovesEngine.name and (wanted or len(devices) > 1):
        kind = None if wanted is None else _SERVERS_ENGINES[wanted]
        try:
            return RingEngine(devices, bound_seconds, issue_seconds, kind)
        except Unsupported as error:
            if wanted:
                needs = _NEEDS[_SERVERS_ENGINES[wanted]]
                raise UsageError(f"the engine {wanted!r} needs {needs}: {error}") from None
    return MovesEngine(devices)


# The engines of servers by name, and the members that they need.
_SERVERS_ENGINES: Final = {str(kind): kind for kind in EngineKind}
_NEEDS: Final = {
    EngineKind.RING: "native servers",
    EngineKind.MEMORY: "members that are all in this process or all on one native server",
    EngineKind.NCCL: "GPUs of native servers with --nccl",
}


def _checked_members(devices: Any) -> tuple[Device, ...]:
    if isinstance(devices, Device):
        raise ArgumentMismatch(f"a group takes a list of devices, not one device, {devices!r}")
    if not isinstance(devices, Iterable) or isinstance(devices, str):
        raise ArgumentMismatch(f"a group takes a list of devices, not {shown(devices)}")
    members = tuple([checked_device(device) for device in devices])
    if not members:
        raise UsageError("a group needs at least one device")
    for place, device in enumerate(members):
        first = members.index(device)
        if first != place:
            raise UsageError(
                f"members {first} and {place} of a group are the same device, {device}, because "
                "they share one session; give each device once"
            )
        if device.runners.closed:
            raise ClosedDevice(f"member {place} of a group, {device}, is closed")
    return members
