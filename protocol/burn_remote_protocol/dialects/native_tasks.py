"""Encoding and decoding of the native dialect's tasks inside a batch.

docs/wire-native.md is the specification. Tasks that refer to a signature by its number are the hot
path. They are not converted here, but used as unpacked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence, Set
from typing import Any, Final, final

from burn_remote_protocol.collectives import (
    GROUP_SECRET_BYTES,
    CollectiveCall,
    CollectiveKind,
    EngineKind,
    GroupSpec,
    Reduction,
)
from burn_remote_protocol.dialects.bounded_unpacking import MAX_LIST_LENGTH, unpack_frozen
from burn_remote_protocol.dialects.native_values import (
    array,
    count,
    exactly,
    published_name,
    seconds,
    spec_from_wire,
    spec_to_wire,
    text,
    transfer_id,
)
from burn_remote_protocol.dialects.reusable_packer import reusable_pack
from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import BurnRemoteError, ProtocolViolation, UsageError, shown
from burn_remote_protocol.ids import is_secret
from burn_remote_protocol.kept_tensors import CONTENT_DIGEST_BYTES
from burn_remote_protocol.messages import (
    BeginUpload,
    Cleanup,
    Collective,
    Define,
    DefineGraph,
    Drop,
    Execute,
    Expose,
    Fetch,
    FindFile,
    JoinGroup,
    KeepContent,
    LeaveGroup,
    ListPublished,
    LoadFile,
    OpenContent,
    OpenPublished,
    Publish,
    QueryDType,
    Read,
    Seed,
    Sync,
    Task,
    Unpublish,
    Upload,
)
from burn_remote_protocol.operations.encoding import (
    decode_operation,
    decode_tensor_data,
    encode_operation,
    encode_tensor_data,
)
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler
from burn_remote_protocol.tensors import TensorSpec

__all__ = [
    "DEFINE_GRAPH_TASK",
    "DEFINE_TASK",
    "DROP_TASK",
    "EXECUTE_TASK",
    "MAX_GRAPHS",
    "MAX_GRAPH_STEPS",
    "MAX_GROUPS",
    "MAX_SIGNATURES",
    "READ_TASK",
    "SLOW_TASKS",
    "LastUses",
    "decode_task",
    "drop_task",
    "dropped_next",
    "encode_task",
    "follows_collective",
    "read_task",
]

# The most signatures that a session may number; each takes about 2 KiB of the server's memory.
# Operations with any other signature are sent in full.
MAX_SIGNATURES: Final = 4096

# The most graphs that a session may number, and the most steps of one graph. The numbers of graphs
# begin at ``MAX_SIGNATURES``. A step takes 0.6 to 4 KB of the server's memory.
MAX_GRAPHS: Final = 256
MAX_GRAPH_STEPS: Final = 4096
# The most groups of which a session may be a member at a time. Each has two threads and a link to
# each neighbour.
MAX_GROUPS: Final = 16

# Calls of collectives up to this size are kept once they are decoded: those of some 200 tensors.
MAX_KEPT_CALL_BYTES: Final = 4096

_INTEGER: Final = frozenset({int})

_pack: Final = reusable_pack()

_DEFINE, _EXECUTE, _DROP, _UPLOAD, _BEGIN_UPLOAD, _READ, _SYNC, _SEED = range(-1, -9, -1)
_QUERY_DTYPE, _CLEANUP, _EXPOSE, _FETCH_TASK, _DEFINE_GRAPH = range(-9, -14, -1)
_JOIN_GROUP, _COLLECTIVE, _LEAVE_GROUP = range(-14, -17, -1)
_FIND_FILE, _LOAD_FILE = range(-17, -19, -1)
_KEEP_CONTENT, _OPEN_CONTENT = range(-19, -21, -1)
_PUBLISH, _UNPUBLISH, _LIST_PUBLISHED, _OPEN_PUBLISHED = range(-21, -25, -1)

# Codes of slow tasks: those that may wait for another server, a disk or another session, that take
# long, or whose duration is unknown until they are decoded.
SLOW_TASKS: Final = frozenset(
    {
        _EXECUTE, _CLEANUP, _FETCH_TASK, _COLLECTIVE, _FIND_FILE, _LOAD_FILE, _KEEP_CONTENT,
        _OPEN_CONTENT, _PUBLISH, _UNPUBLISH, _LIST_PUBLISHED, _OPEN_PUBLISHED,
    }
)  # fmt: skip
DEFINE_TASK: Final = _DEFINE
DEFINE_GRAPH_TASK: Final = _DEFINE_GRAPH
DROP_TASK: Final = _DROP
EXECUTE_TASK: Final = _EXECUTE
READ_TASK: Final = _READ


def _task_transfer(value: Any) -> bytes | int:
    """Decode a transfer id; it is a number if the other server speaks Burn 0.21."""
    if type(value) is int and is_secret(value):
        return count(value)
    return transfer_id(value)


def _ids(tensors: Any) -> tuple[int, ...]:
    # Programs drop as many tensors as they make, and calling ``count`` for each takes 0.2 µs.
    if type(tensors) is tuple and tensors and _INTEGER.issuperset(map(type, tensors)):
        count(min(tensors))  # MessagePack has no integer above ``MAX_ID``
        return tensors
    return tuple(count(tensor) for tensor in array(tensors))


def _read_from_wire(request: Any, tensor: Any, spec: Any) -> Read:
    # MessagePack has no integer above ``MAX_ID``.
    if type(request) is not int or request < 0 or type(tensor) is not int or tensor < 0:
        count(request), count(tensor)  # one of them raises
    # Without the constructor, which is Python code: each round trip has a read.
    return tuple.__new__(Read, (request, tensor, spec_from_wire(spec)))


def _define_from_wire(number: Any, operation: Any) -> Define:
    return Define(count(number, MAX_SIGNATURES - 1), decode_operation(operation).signature)


def _graph_number(value: Any) -> int:
    if count(value, MAX_SIGNATURES + MAX_GRAPHS - 1) < MAX_SIGNATURES:
        raise ProtocolViolation(f"the numbers of graphs begin at {MAX_SIGNATURES}, not {value}")
    return int(value)


def _graph_from_wire(
    number: Any, input_count: Any, steps: Any, outputs: Any, numbers: Any
) -> DefineGraph:
    if not 0 < len(array(steps)) <= MAX_GRAPH_STEPS:
        raise ProtocolViolation(
            f"a graph of {len(steps):,} steps; it has at least 1 and at most {MAX_GRAPH_STEPS:,}"
        )
    return DefineGraph(
        _graph_number(number),
        count(input_count, MAX_LIST_LENGTH),
        tuple(tuple(count(one) for one in array(step)) for step in steps),
        tuple(count(slot) for slot in array(outputs)),
        tuple(
            (count(step), count(field), count(place))
            for step, field, place in map(array, array(numbers))
        ),
    )


def _group_from_wire(
    group: Any,
    secret: Any,
    rank: Any,
    addresses: Any,
    bound: Any,
    issue: Any,
    engine: Any = 0,
) -> JoinGroup:
    try:
        spec = GroupSpec(
            exactly(GROUP_SECRET_BYTES, "the secret of a group", secret),
            count(rank),
            tuple(text(address) for address in array(addresses)),
            seconds(bound),
            seconds(issue),
            EngineKind(count(engine)),
        )
    except UsageError as error:
        raise ProtocolViolation(str(error)) from None
    return JoinGroup(count(group, MAX_GROUPS - 1), spec)


def _collective_from_wire(
    group: Any,
    sequence: Any,
    kind: Any,
    reduction: Any,
    root: Any,
    specs: Any,
    inputs: Any,
    outputs: Any,
) -> Collective:
    # The key is the call's bytes, because ``True`` equals ``1``. Calls with maps are not kept: the
    # bytes of a map are those of the list of its entries.
    wire = _pack((kind, reduction, root, specs)) if _has_plain_dtypes(specs) else b""
    if 0 < len(wire) <= MAX_KEPT_CALL_BYTES:
        call = _kept_call(wire)
    else:
        call = _call_from_wire(kind, reduction, root, specs)
    number = count(group, MAX_GROUPS - 1)
    return Collective(number, count(sequence), call, _ids(inputs), _ids(outputs))


def _has_plain_dtypes(specs: Any) -> bool:
    """Return whether all dtypes are texts; others, such as that of booleans, are maps."""
    return type(specs) is tuple and all(
        type(spec) is tuple and len(spec) == 2 and type(spec[1]) is str for spec in specs
    )


def _call_from_wire(kind: Any, reduction: Any, root: Any, specs: Any) -> CollectiveCall:
    return CollectiveCall(
        CollectiveKind(count(kind)),
        tuple(spec_from_wire(spec) for spec in array(specs)),
        Reduction(count(reduction)),
        count(root),
    )


# Programs repeat their calls. Decoding one takes 10 µs, finding it 2.
@functools.lru_cache(maxsize=128)
def _kept_call(wire: bytes) -> CollectiveCall:
    return _call_from_wire(*unpack_frozen(wire))


def _digest(value: Any) -> bytes:
    return exactly(CONTENT_DIGEST_BYTES, "the digest of a content", value)


def _content_from_wire(digest: Any, first: Any, specs: Any) -> KeepContent:
    if not array(specs):
        raise ProtocolViolation("a content has at least one tensor")
    return KeepContent(_digest(digest), count(first), tuple(spec_from_wire(one) for one in specs))


def _number_tensors(task: Define) -> Operation:
    signature = task.signature
    return Operation(signature, (0,) * (len(signature.input_uses) + signature.output_count))


_ENCODE_TASK: Final[dict[type[Any], Callable[[Any], list[Any] | tuple[Any, ...]]]] = {
    Define: lambda t: [_DEFINE, t.number, encode_operation(_number_tensors(t))],
    DefineGraph: lambda t: [_DEFINE_GRAPH, t.number, t.input_count, t.steps, t.outputs, t.numbers],
    Execute: lambda t: [_EXECUTE, encode_operation(t.operation)],
    Drop: lambda t: drop_task([*t.tensors]),
    Upload: lambda t: [_UPLOAD, t.tensor, encode_tensor_data(t.data)],
    BeginUpload: lambda t: [_BEGIN_UPLOAD, t.tensor, spec_to_wire(t.spec), t.byte_count],
    Read: lambda t: read_task(t.request, t.tensor, t.spec),
    Sync: lambda t: [_SYNC, t.request],
    Seed: lambda t: [_SEED, t.seed],
    QueryDType: lambda t: [_QUERY_DTYPE, t.request, t.dtype.wire],
    Cleanup: lambda t: [_CLEANUP],
    Expose: lambda t: [
        _EXPOSE, t.tensor, spec_to_wire(t.spec), t.count, t.transfer, t.expires_seconds
    ],
    Fetch: lambda t: [
        _FETCH_TASK, t.transfer, t.address, t.tensor, spec_to_wire(t.spec)
    ],
    JoinGroup: lambda t: [
        _JOIN_GROUP, t.group, t.spec.secret, t.spec.rank, t.spec.addresses, t.spec.bound_seconds,
        t.spec.issue_seconds, *([int(t.spec.engine)] if t.spec.engine else [])
    ],
    Collective: lambda t: [
        _COLLECTIVE, t.group, t.sequence, int(t.call.kind), int(t.call.reduction), t.call.root,
        [spec_to_wire(spec) for spec in t.call.specs], t.inputs, t.outputs
    ],
    LeaveGroup: lambda t: [_LEAVE_GROUP, t.group],
    FindFile: lambda t: [_FIND_FILE, t.request, t.name],
    LoadFile: lambda t: [
        _LOAD_FILE, t.tensor, spec_to_wire(t.spec), t.name, t.version, t.offset
    ],
    KeepContent: lambda t: [
        _KEEP_CONTENT, t.digest, t.first, [spec_to_wire(spec) for spec in t.specs]
    ],
    OpenContent: lambda t: [_OPEN_CONTENT, t.request, t.digest, t.first, t.count],
    Publish: lambda t: [_PUBLISH, t.request, t.name, t.tensor, spec_to_wire(t.spec)],
    Unpublish: lambda t: [_UNPUBLISH, t.request, t.name],
    ListPublished: lambda t: [_LIST_PUBLISHED, t.request, t.name],
    OpenPublished: lambda t: [_OPEN_PUBLISHED, t.tensor, spec_to_wire(t.spec), t.name],
}  # fmt: skip

_DECODE_TASK: Final[dict[int, Callable[..., Task]]] = {
    _DEFINE: _define_from_wire,
    _DEFINE_GRAPH: _graph_from_wire,
    _EXECUTE: lambda operation: Execute(decode_operation(operation)),
    _DROP: lambda tensors: Drop(_ids(tensors)),
    _UPLOAD: lambda tensor, data: Upload(count(tensor), decode_tensor_data(data)),
    _BEGIN_UPLOAD: lambda tensor, spec, byte_count: BeginUpload(
        count(tensor), spec_from_wire(spec), count(byte_count)
    ),
    _READ: _read_from_wire,
    _SYNC: lambda request: Sync(count(request)),
    _SEED: lambda seed: Seed(count(seed)),
    _QUERY_DTYPE: lambda request, dtype: QueryDType(count(request), DType.from_wire(dtype)),
    _CLEANUP: lambda: Cleanup(),
    _EXPOSE: lambda tensor, spec, times, transfer, expires: Expose(
        count(tensor),
        spec_from_wire(spec),
        count(times),
        _task_transfer(transfer),
        seconds(expires),
    ),
    _FETCH_TASK: lambda transfer, address, tensor, spec: Fetch(
        _task_transfer(transfer), text(address), count(tensor), spec_from_wire(spec)
    ),
    _JOIN_GROUP: _group_from_wire,
    _COLLECTIVE: _collective_from_wire,
    _LEAVE_GROUP: lambda group: LeaveGroup(count(group, MAX_GROUPS - 1)),
    _FIND_FILE: lambda request, name: FindFile(count(request), text(name)),
    _LOAD_FILE: lambda tensor, spec, name, version, offset: LoadFile(
        count(tensor), spec_from_wire(spec), text(name), count(version), count(offset)
    ),
    _KEEP_CONTENT: _content_from_wire,
    _OPEN_CONTENT: lambda request, digest, first, tensors: OpenContent(
        count(request), _digest(digest), count(first), count(tensors, MAX_LIST_LENGTH)
    ),
    _PUBLISH: lambda request, name, tensor, spec: Publish(
        count(request), published_name(name), count(tensor), spec_from_wire(spec)
    ),
    _UNPUBLISH: lambda request, name: Unpublish(count(request), published_name(name)),
    _LIST_PUBLISHED: lambda request, name: ListPublished(
        count(request), None if name is None else published_name(name)
    ),
    _OPEN_PUBLISHED: lambda tensor, spec, name: OpenPublished(
        count(tensor), spec_from_wire(spec), published_name(name)
    ),
}


def drop_task(tensors: list[int]) -> tuple[Any, ...]:
    """Return ``Drop(tensors)`` as a list that a batch packs together with its other tasks."""
    return (_DROP, tensors)


def read_task(request: int, tensor: int, spec: TensorSpec) -> tuple[Any, ...]:
    """Return ``Read(request, tensor, spec)`` as a list that a batch packs."""
    shape, dtype = spec
    return (_READ, request, tensor, (shape, dtype.wire))


def encode_task(task: Task) -> bytes:
    """Encode a task for a batch."""
    return _pack(_ENCODE_TASK[type(task)](task))


def decode_task(wire: Any) -> Task:
    """Decode an element of a batch into its task.

    Raises ``ProtocolViolation`` for a malformed task.
    """
    try:
        if type(wire) is not tuple:
            array(wire)  # raises for anything but a list
        return _DECODE_TASK[wire[0]](*wire[1:])
    except BurnRemoteError:
        raise
    except (KeyError, TypeError, ValueError, IndexError) as error:
        pass_on_of_signal_handler(error)
        is_secret_task = type(wire) is tuple and wire[:1] == (_JOIN_GROUP,)
        seen = "(contents withheld)" if is_secret_task else shown(wire)
        raise ProtocolViolation(f"malformed task: {seen}") from None


@final
class LastUses:
    """The tensors that each task of a batch is the last to use before the batch drops them.

    Only operations and graphs may be between such a task and the drop. ``tasks`` are unpacked but
    not decoded. Never raises: a malformed task ends the search, so nothing is dropped before it.
    """

    __slots__ = ("_dying", "_end", "_tasks")

    def __init__(self, tasks: Sequence[Any]) -> None:
        self._tasks = tasks
        self._end = 0  # the tasks before this position have been searched
        self._dying: dict[int, set[Any]] = {}

    def of(self, place: int) -> Set[Any]:
        """Return the tensors that task ``place`` uses last. Call it in ascending order of places.

        All calls together visit each task at most once.
        """
        if place >= self._end:
            self._search(place)
        return self._dying.get(place, frozenset())

    def _search(self, start: int) -> None:
        """Search from task ``start`` to the next one that is neither operation nor graph."""
        used: dict[Any, int] = {}
        dying: dict[int, set[Any]] = {}
        self._dying = dying
        self._end = len(self._tasks)
        for place in range(start, self._end):
            task = self._tasks[place]
            try:
                if task[0] == _DROP:
                    for tensor in task[1]:
                        if tensor in used:
                            dying.setdefault(used[tensor], set()).add(tensor)
                    self._end = place
                    return
                if task[0] >= 0:
                    # The last argument of a graph may be a list of numbers.
                    tensors = task[1:-1] if type(task[-1]) is tuple else task[1:]
                    # Raises ``TypeError`` for anything but numbers, in less time than a check of
                    # the types. They must not be hashed: a client can choose tuples with equal
                    # hashes.
                    sum(tensors)
                    used.update(dict.fromkeys(tensors, place))
                    continue
            except (TypeError, IndexError):
                dying.clear()
            self._end = place
            return


def dropped_next(tasks: Sequence[Any], place: int) -> tuple[Any, ...]:
    """Return the tensors that a batch drops right after task ``place``.

    One definition may be in between. ``tasks`` are unpacked but not decoded. Never raises: a
    malformed task drops nothing.
    """
    for task in tasks[place + 1 : place + 3]:
        if type(task) is tuple and len(task) == 2 and task[0] == _DROP:
            return task[1] if type(task[1]) is tuple else ()
        if type(task) is not tuple or not task or task[0] != _DEFINE:
            return ()
    return ()


def follows_collective(tasks: Sequence[Any], place: int) -> bool:
    """Return whether a batch has only drops between task ``place`` and a collective before it.

    The tasks before ``place`` must have been decoded without an error. Tasks of Burn's dialects are
    objects, not tuples, and never count as collectives.
    """
    for before in range(place - 1, -1, -1):
        task = tasks[before]
        if type(task) is not tuple:
            return False
        if task[0] != _DROP:
            return bool(task[0] == _COLLECTIVE)
    return False
