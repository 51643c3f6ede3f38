"""Encoding and decoding of the messages of Burn 0.22's remote backend.

A client has one socket, on ``/session``. It sends frames that are arrays of messages, and the first
frame holds nothing but ``Init``. The server sends one response per frame. All values are
MessagePack as Rust's ``rmp_serde::to_vec`` writes it; docs/wire-burn-0.22.md is the specification.

Operations are those of the vocabulary ``BURN_0_22``. Streams are not decoded: the tasks of a
session run in the order of their arrival, as in Burn's own server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import msgpack

from burn_remote_protocol.collectives import Reduction
from burn_remote_protocol.dialects.bounded_unpacking import (
    MAX_LIST_LENGTH,
    MAX_VALUE_BYTES,
    unpack_frozen,
    unpack_frozen_in_steps,
    unpacked_bytes,
)
from burn_remote_protocol.dialects.burn_0_21 import EXPIRES_SECONDS
from burn_remote_protocol.dialects.burn_0_22_iroh import (
    bound_transfer,
    read_iroh_address,
    read_key,
)
from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ProtocolViolation,
    Unsupported,
    detached,
    shown,
)
from burn_remote_protocol.frozen_map import FrozenMap, value_key
from burn_remote_protocol.messages import (
    Drop,
    Expose,
    Fetch,
    QueryDType,
    Read,
    Seed,
    Sync,
    Task,
    Upload,
)
from burn_remote_protocol.operations.encoding import decode_operation, decode_tensor_data
from burn_remote_protocol.operations.families.session import ALL_REDUCE
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.operations.vocabularies import Vocabulary, check_dtype
from burn_remote_protocol.operations.wire_values import (
    ARRAYS,
    MAX_UNSIGNED,
    Scalar,
    decode_scalar,
    decode_slice,
    decode_tensor,
    is_unsigned,
    sequence,
    unexpected,
    variant,
)
from burn_remote_protocol.tensors import MAX_ELEMENTS, Slice, TensorSpec, TensorStatus

__all__ = [
    "VERSION",
    "Alias",
    "AllReduce",
    "Bindings",
    "Close",
    "ExposeLocally",
    "FetchLocally",
    "FetchUnsupported",
    "Message",
    "PackedMessage",
    "Profile",
    "RunGraph",
    "SessionInit",
    "decode_graph",
    "decode_init",
    "decode_messages",
    "each_message",
    "encode_init",
    "ends_with_close",
    "is_burn_frame",
    "packed_messages",
]

# The version of the protocol in burn-remote 0.22.0 and 0.22.1. 0.23.0-pre.1 has version 6: it has
# the same ``Init``, but divides later messages into frames differently.
VERSION: Final = 2

MAX_TOKEN_BYTES: Final = 4096
MAX_HOST_CHARACTERS: Final = 255
MAX_SCHEME_CHARACTERS: Final = 16
CAPABILITY_BYTES: Final = 32

# The operations of one graph. A training step of a large model has some thousands.
MAX_GRAPH_OPERATIONS: Final = 4096

_MAX_U32: Final = 2**32 - 1
_ARRAYS: Final = frozenset(ARRAYS)

_pack: Final[Callable[[Any], bytes]] = msgpack.packb


class SessionInit(NamedTuple):
    """The first message of a client."""

    version: int
    session: int
    device_index: int
    authorization: bytes

    def __repr__(self) -> str:
        """Show all but the token."""
        return f"SessionInit(version={self.version}, device_index={self.device_index})"


class Close(NamedTuple):
    """The client ends its session."""

    session: int


class Alias(NamedTuple):
    """A second id for the elements of a tensor; either may be dropped first."""

    tensor: int
    source: int


class ExposeLocally(NamedTuple):
    """Hand a tensor to another session of the same client on this server.

    ``is_last``: this session does not use the tensor afterwards.
    """

    tensor: int
    spec: TensorSpec
    transfer: int
    is_last: bool


class FetchLocally(NamedTuple):
    """Take the tensor that another session of the same client hands over."""

    transfer: int
    tensor: int


class FetchUnsupported(NamedTuple):
    """A fetch from a peer that this server cannot reach; the tensor fails with ``error``."""

    tensor: int
    error: Unsupported


class AllReduce(NamedTuple):
    """Combine a tensor with those of other sessions of the same client: one for each device.

    ``devices`` are the client's numbers of the devices. A server uses only their count, and the
    equality of two lists: collectives with equal lists belong together. ``is_last``: this session
    does not use the tensor afterwards.
    """

    tensor: int
    output: int
    spec: TensorSpec
    output_spec: TensorSpec
    reduction: Reduction
    devices: tuple[tuple[int, int], ...]
    is_last: bool


class Bindings(NamedTuple):
    """The values for one call of a graph.

    A graph's operations contain *relative* values: relative ids of tensors, and positions in the
    lists ``sizes``, ``scalars`` and ``slices``. ``tensors`` has pairs of a relative id and the id
    in the session.
    """

    tensors: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...]
    scalars: tuple[Scalar, ...]
    slices: tuple[Slice, ...]


class RunGraph(NamedTuple):
    """Run a graph; ``operations`` are ``None`` unless the message also registers the graph.

    They have relative values (see ``Bindings``). They stay in MessagePack, because ``decode_graph``
    takes up to half a second. A client may register the same operations repeatedly, and their bytes
    identify the graph.
    """

    graph: int
    operations: bytes | None
    bindings: Bindings


class Profile(NamedTuple):
    """A request to start or end a profile; ``answer`` is the variant's name in the response."""

    request: int
    answer: str


Message = (
    Task
    | Operation
    | Close
    | Alias
    | AllReduce
    | ExposeLocally
    | FetchLocally
    | FetchUnsupported
    | RunGraph
    | Profile
)


def is_burn_frame(frame: bytes | memoryview) -> bool:
    """Whether a connection's first frame is a MessagePack array, as Burn's are since 0.22.

    Frames of the native dialect begin with a smaller number, the type of a message.
    """
    return bool(frame) and (0x90 <= frame[0] <= 0x9F or frame[0] in (0xDC, 0xDD))


# -- the first message ------------------------------------------------------------------------


def encode_init(init: SessionInit) -> bytes:
    """Return the first frame of a session."""
    version, session, device_index, authorization = init
    return _pack([{"Init": [version, [session], device_index, authorization]}])


def decode_init(frame: bytes) -> SessionInit:
    """Decode a session's first frame, of any version that has these fields.

    Raises ``ProtocolViolation`` for anything else, also if the frame holds further messages.
    """
    (message,) = sequence(unpack_frozen(frame), 1, "the first frame, with Init alone")
    name, body = variant(message, "Init")
    if name != "Init":
        raise unexpected("Init, which opens a session", name)
    version, session, device_index, authorization = sequence(body, 4, "Init")
    if not _is_u32(version) or not _is_u32(device_index):
        raise unexpected("a version and the index of a device", body[::2])
    if type(authorization) is not bytes or len(authorization) > MAX_TOKEN_BYTES:
        raise ProtocolViolation(
            f"expected an authorization of at most {MAX_TOKEN_BYTES} bytes (contents withheld)"
        )
    return SessionInit(version, _wrapped(session, "a session"), device_index, authorization)


# -- messages ---------------------------------------------------------------------------------


def decode_messages(frame: bytes | memoryview) -> list[Message | ProtocolViolation]:
    """Decode a frame into its messages, with the error in the place of a malformed message.

    If a read or an expose is a tensor's last use, a ``Drop`` follows it. Raises
    ``ProtocolViolation`` if the frame is no array of messages.
    """
    return [message for message in each_message(frame) if message is not None]


def each_message(frame: bytes | memoryview) -> Iterator[Message | ProtocolViolation | None]:
    """Yield the messages of a frame like ``decode_messages``, decoding each only when it is due.

    Yields ``None`` between the steps of unpacking long messages. Raises ``ProtocolViolation`` where
    the frame ceases to be an array of messages.
    """
    for unpacked in _messages(frame):
        if unpacked is None:
            yield None
            continue
        try:
            yield from _decode_message(*unpacked)
        except ProtocolViolation as error:
            # Its frames, and those of its context, would keep the decoded values alive.
            yield detached(error)


class PackedMessage(NamedTuple):
    """A message of a frame, not decoded.

    ``elements`` are the elements of an upload, or the operations of a graph, as a view of the frame
    or a copy; ``body`` has an empty buffer or array in their place.
    """

    body: bytes
    elements: memoryview | None

    @property
    def unpacked_bytes(self) -> int:
        """A bound for the memory that decoding and executing the message takes."""
        if self.elements is None:
            return unpacked_bytes(self.body)
        if self.body.startswith(_REGISTERS_GRAPH):
            return unpacked_bytes(self.body) + unpacked_bytes(self.elements)
        return unpacked_bytes(self.body) + len(self.elements)

    def decode(self) -> Sequence[Message | ProtocolViolation]:
        """Return the message, with a ``Drop`` if it is a tensor's last use, or its error."""
        try:
            return _decode_message(unpack_frozen(self.body), self.elements)
        except ProtocolViolation as error:
            return (detached(error),)


def ends_with_close(frame: bytes | memoryview) -> bool:
    """Whether the last message of a frame ends the session, as Burn's client writes it."""
    return _CLOSES.search(bytes(frame[-_CLOSE_BYTES:])) is not None


# The start of an upload, up to its elements.
_UNSIGNED: Final = rb"(?:[\x00-\x7f]|\xcc.|\xcd..|\xce.{4}|\xcf.{8})"
_BEFORE_ELEMENTS: Final = re.compile(
    rb"\x81\xa4Task\x81\xaeRegisterTensor\x93\x91" + _UNSIGNED + rb"\x91" + _UNSIGNED + rb"\x93",
    re.DOTALL,
)
# The start of a registration of a graph, up to its operations.
_REGISTERS_GRAPH: Final = b"\x81\xa4Task\x81\xb7RegisterAndExecuteGraph\x94\x91"
_BEFORE_OPERATIONS: Final = re.compile(
    re.escape(_REGISTERS_GRAPH) + _UNSIGNED + _UNSIGNED, re.DOTALL
)
_NO_OPERATIONS: Final = b"\x90"
_CLOSES: Final = re.compile(rb"\x81\xa5Close\x91" + _UNSIGNED + rb"\Z", re.DOTALL)
_CLOSE_BYTES: Final = 17
# MessagePack's types of byte buffers: the bytes of their lengths.
_BUFFERS: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_EMPTY_BUFFER: Final = b"\xc4\x00"

# The bytes that the unpacker gets first: more than most messages have.
FIRST_FED_BYTES: Final = 2048

# Elements of at most this many bytes are copied out of their frame.
_COPIED_BYTES: Final = 64 * 1024

# Enough for the shape and dtype after the elements of an upload.
_AFTER_ELEMENTS_BYTES: Final = 1024


def _messages(frame: bytes | memoryview) -> Iterator[tuple[Any, memoryview | None] | None]:
    """Yield the unpacked messages of a frame, each with the bytes that were cut out of it.

    Yields ``None`` between the steps of unpacking.

    Those are the elements of an upload or the operations of a graph, as a view of the frame; the
    unpacked message has an empty buffer or array in their place. ``None`` if nothing was cut out. A
    client may put several large uploads into one frame. Raises ``ProtocolViolation``.
    """
    if len(frame) <= MAX_VALUE_BYTES and _REGISTERS_GRAPH not in bytes(frame):
        value = yield from unpack_frozen_in_steps(frame)
        if type(value) not in ARRAYS:
            raise unexpected("an array of messages", value)
        for wire in value:
            yield wire, None
        return
    for body, elements in packed_messages(frame):
        yield (yield from unpack_frozen_in_steps(body)), elements


def packed_messages(frame: bytes | memoryview) -> Iterator[PackedMessage]:
    """Yield the messages of a frame without decoding them.

    Raises ``ProtocolViolation`` where the frame ceases to be an array of messages.
    """
    if not is_burn_frame(frame):
        raise ProtocolViolation("expected an array of messages")
    frame = memoryview(frame)
    count, place = frame[0] - 0x90, 1
    if frame[0] in (0xDC, 0xDD):
        place = 3 if frame[0] == 0xDC else 5
        count = int.from_bytes(frame[1:place], "big")
    if not 0 <= count <= MAX_LIST_LENGTH:
        raise ProtocolViolation(f"expected an array of at most {MAX_LIST_LENGTH:,} messages")
    left_bytes = MAX_VALUE_BYTES
    for _ in range(count):
        match = _BEFORE_ELEMENTS.match(frame, place)
        elements = None
        if (graph := _BEFORE_OPERATIONS.match(frame, place)) is not None:
            start = graph.end()
            stop = start + _length(frame[start : start + left_bytes], 1)
            elements = frame[start:stop]
            end = stop + _length(frame[stop : stop + left_bytes], 1)
            body = b"".join((frame[place:start], _NO_OPERATIONS, frame[stop:end]))
            left_bytes -= len(elements)
        elif match is None or (found := _buffer(frame, match.end())) is None:
            end = place + _length(frame[place : place + left_bytes], 1)
            body = bytes(frame[place:end])
        else:
            start, stop = found
            elements = _copied_if_short(frame[start:stop])
            end = stop + _length(frame[stop : stop + _AFTER_ELEMENTS_BYTES], 2)
            body = b"".join((frame[place : match.end()], _EMPTY_BUFFER, frame[stop:end]))
        left_bytes -= len(body)
        yield PackedMessage(body, elements)
        place = end
    if place != len(frame):
        raise ProtocolViolation(f"{len(frame) - place:,} bytes follow the messages of a frame")


def _copied_if_short(elements: memoryview) -> memoryview:
    # A server may give a frame's memory to a long tensor in it, if nothing refers to the rest.
    return memoryview(bytes(elements)) if len(elements) <= _COPIED_BYTES else elements


def _buffer(frame: memoryview, place: int) -> tuple[int, int] | None:
    """Return where the contents of a byte buffer begin and end, ``None`` for another value."""
    size = _BUFFERS.get(frame[place]) if place < len(frame) else None
    if size is None:
        return None
    start = place + 1 + size
    stop = start + int.from_bytes(frame[place + 1 : start], "big")
    if stop > len(frame):
        raise ProtocolViolation("not MessagePack: a byte buffer is longer than its frame")
    return start, stop


def _length(values: memoryview, count: int) -> int:
    """Return the length of the first ``count`` values, in bytes."""
    # The unpacker copies its input, so it gets only the beginning of a frame for each message.
    size = min(FIRST_FED_BYTES, len(values))
    while True:
        unpacker = msgpack.Unpacker(max_buffer_size=size or 1, read_size=size or 1)
        try:
            unpacker.feed(values[:size])
            for _ in range(count):
                unpacker.skip()
        except msgpack.OutOfData:
            if size == len(values):
                break
            size = min(16 * size, len(values))
        except (ValueError, msgpack.UnpackException, RecursionError):
            break
        else:
            return int(unpacker.tell())
    raise ProtocolViolation(
        "not MessagePack, or a message without the elements of tensors has more than "
        f"{MAX_VALUE_BYTES:,} bytes"
    )


def _decode_message(wire: Any, elements: memoryview | None) -> tuple[Message, ...]:
    kind, body = variant(wire, "a message")
    if kind == "Close":
        return (Close(_wrapped(body, "a session")),)
    if kind != "Task":
        raise unexpected("a message (Task, Close)", kind)
    name, body = variant(body, "a task")
    decode = _DECODE_TASK.get(name)
    if decode is None:
        raise unexpected(f"a task ({', '.join(_DECODE_TASK)})", name)
    if elements is not None:
        if name == "RegisterTensor":
            stream, tensor, (_, dims, dtype) = body
            body = stream, tensor, (elements, dims, dtype)
        else:
            stream, graph, _, bindings = body
            body = stream, graph, bytes(elements), bindings
    try:
        return decode(body)
    except BurnRemoteError as error:
        if isinstance(error, ProtocolViolation):
            raise
        raise ProtocolViolation(str(error)) from None
    except (TypeError, ValueError):
        raise ProtocolViolation(f"not a body of {name}: {shown(body)}") from None


def _is_u32(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_U32


def _unsigned(value: Any, what: str) -> int:
    if not is_unsigned(value):
        raise unexpected(f"{what}, an unsigned 64-bit integer", value)
    return int(value)


def _wrapped(wire: Any, what: str) -> int:
    """Return the number in an array of one element."""
    (value,) = sequence(wire, 1, f"the id of {what}")
    return _unsigned(value, f"the id of {what}")


def _operation(wire: Any) -> tuple[Message, ...]:
    _, operation = sequence(wire, 2, "a stream and an operation")
    if operation == _SYNC_COLLECTIVE:
        return ()  # operations on the outputs of a collective wait for it
    decoded = decode_operation(operation, Vocabulary.BURN_0_22)
    return (_all_reduce(decoded) if decoded.signature.row is ALL_REDUCE else decoded,)


_SYNC_COLLECTIVE: Final = FrozenMap([("Distributed", "SyncCollective")])
_REDUCTIONS: Final = {"Sum": Reduction.SUM, "Mean": Reduction.MEAN}


def _all_reduce(operation: Operation) -> AllReduce:
    (tensor, output), (use, out, reduction, devices) = (
        operation.tensors,
        operation.signature.arguments,
    )
    is_last = use.status is TensorStatus.READ_WRITE
    return AllReduce(tensor, output, use.spec, out.spec, _REDUCTIONS[reduction], devices, is_last)


def _upload(wire: Any) -> tuple[Message, ...]:
    _, tensor, data = sequence(wire, 3, "a stream, an id and the data of a tensor")
    upload = Upload(_wrapped(tensor, "a tensor"), decode_tensor_data(data))
    check_dtype(upload.data.dtype, Vocabulary.BURN_0_22)
    return (upload,)


def _alias(wire: Any) -> tuple[Message, ...]:
    _, tensor, source = sequence(wire, 3, "a stream and two ids")
    return (Alias(_wrapped(tensor, "a tensor"), _wrapped(source, "a tensor")),)


def _read(wire: Any) -> tuple[Message, ...]:
    request, _, described = sequence(wire, 3, "a request, a stream and a tensor")
    tensor, use = decode_tensor(described)
    read = Read(_unsigned(request, "a request"), tensor, use.spec)
    return _with_drop(read, tensor, use.status)


def _with_drop(task: Task, tensor: int, status: TensorStatus) -> tuple[Message, ...]:
    return (task, Drop((tensor,))) if status is TensorStatus.READ_WRITE else (task,)


def _sync(wire: Any) -> tuple[Message, ...]:
    request, _ = sequence(wire, 2, "a request and a stream")
    return (Sync(_unsigned(request, "a request")),)


def _known_dtype(wire: Any) -> DType:
    return check_dtype(DType.from_wire(wire), Vocabulary.BURN_0_22)


def _dtype_usage(wire: Any) -> tuple[Message, ...]:
    request, dtype = sequence(wire, 2, "a request and a dtype")
    return (QueryDType(_unsigned(request, "a request"), _known_dtype(dtype)),)


def _expose(wire: Any) -> tuple[Message, ...]:
    _, described, count, capability, peer = sequence(
        wire, 5, "a stream, a tensor, a count, a capability and a peer"
    )
    tensor, use = decode_tensor(described)
    if not _is_u32(count):
        raise unexpected("a count, an unsigned 32-bit integer", count)
    transfer = _transfer(capability)
    name, key = variant(peer, "a peer")
    if name == "Iroh":
        target = read_key(key, "the key of a peer")
        transfer = bound_transfer(read_key(capability, "a capability"), target)
    expose = Expose(tensor, use.spec, count, transfer, EXPIRES_SECONDS)
    return _with_drop(expose, tensor, use.status)


def _transfer(capability: Any) -> int:
    """Return the number by which servers exchange a tensor over WebSockets: the first 8 bytes."""
    return int.from_bytes(read_key(capability, "a capability")[:8], "little")


def _fetch(wire: Any) -> tuple[Message, ...]:
    _, remote, new = sequence(wire, 3, "a stream, an exposed tensor and an id")
    capability, peer = sequence(remote, 2, "a capability and a peer")
    tensor, transfer = _wrapped(new, "a tensor"), _transfer(capability)
    name, address = variant(peer, "a peer")
    if name == "Iroh":
        number = int.from_bytes(read_key(capability, "a capability"), "little")
        return (Fetch(number, read_iroh_address(address), tensor, None),)
    if name != "WebSocket":
        reason = f"this server fetches tensors over WebSocket and Iroh, not over {shown(name)}"
        return (FetchUnsupported(tensor, Unsupported(reason)),)
    scheme, host, port = sequence(address, 3, "an address")
    if type(scheme) is not str or type(host) is not str:
        raise unexpected("a scheme, a host and a port", address)
    if len(scheme) > MAX_SCHEME_CHARACTERS or len(host) > MAX_HOST_CHARACTERS:
        raise unexpected(f"a host of at most {MAX_HOST_CHARACTERS} characters", address)
    if port is not None and not (type(port) is int and 0 <= port < 2**16):
        raise unexpected("a port or nil", port)
    written = f"{scheme}://{host}" if port is None else f"{scheme}://{host}:{port}"
    return (Fetch(transfer, written, tensor, None),)


def _expose_locally(wire: Any) -> tuple[Message, ...]:
    _, described, transfer = sequence(wire, 3, "a stream, a tensor and a transfer")
    tensor, use = decode_tensor(described)
    is_last = use.status is TensorStatus.READ_WRITE
    return (ExposeLocally(tensor, use.spec, _unsigned(transfer, "a transfer"), is_last),)


def _fetch_locally(wire: Any) -> tuple[Message, ...]:
    _, transfer, new = sequence(wire, 3, "a stream, a transfer and an id")
    return (FetchLocally(_unsigned(transfer, "a transfer"), _wrapped(new, "a tensor")),)


def _register_graph(wire: Any) -> tuple[Message, ...]:
    _, graph, operations, bindings = sequence(wire, 4, "a stream, a graph, operations, bindings")
    if type(operations) is not bytes:  # ``_BEFORE_OPERATIONS`` did not match the message
        raise ProtocolViolation("expected a stream, a graph and operations in their short forms")
    return (RunGraph(_unsigned(graph, "a graph"), operations, _bindings(bindings)),)


def decode_graph(packed: bytes) -> tuple[Operation, ...]:
    """Decode the operations of a ``RunGraph``. Raises ``ProtocolViolation``."""
    operations = unpack_frozen(packed)
    if type(operations) not in ARRAYS or len(operations) > MAX_GRAPH_OPERATIONS:
        raise unexpected(f"an array of at most {MAX_GRAPH_OPERATIONS:,} operations", operations)
    try:
        return tuple([decode_operation(one, Vocabulary.BURN_0_22) for one in operations])
    except (TypeError, ValueError):
        raise ProtocolViolation("not the operations of a graph") from None


def _execute_graph(wire: Any) -> tuple[Message, ...]:
    _, graph, bindings = sequence(wire, 3, "a stream, a graph and bindings")
    return (RunGraph(_unsigned(graph, "a graph"), None, _bindings(bindings)),)


def _bindings(wire: Any) -> Bindings:
    tensors, sizes, scalars, slices = sequence(wire, 4, "the bindings of a graph")
    for values in (tensors, sizes, scalars, slices):
        if type(values) not in ARRAYS:
            raise unexpected("the bindings of a graph, arrays", values)
    return Bindings(_pairs(tensors), *_bound_values(sizes, scalars, slices))


def _pairs(tensors: Any) -> tuple[tuple[int, int], ...]:
    """Return pairs of ids, each of which is in an array of one element.

    All pairs are checked at once, which takes a tenth of the time of checking one after another.
    """
    if {*map(type, tensors)} <= _ARRAYS and {*map(len, tensors)} <= {2}:
        ids = [*chain.from_iterable(tensors)]
        if {*map(type, ids)} <= _ARRAYS and {*map(len, ids)} <= {1}:
            numbers = [*chain.from_iterable(ids)]
            if (
                {*map(type, numbers)} == {int}
                and min(numbers) >= 0
                and max(numbers) <= MAX_UNSIGNED
            ):
                return tuple(zip(numbers[::2], numbers[1::2], strict=True))
    # One is wrong, or there are none.
    return tuple([(_wrapped(old, "a tensor"), _wrapped(new, "a tensor")) for old, new in tensors])


# The sizes, scalars and slices of a call. A program that repeats its steps sends equal ones in each
# step, and decoding them takes a quarter of the time of a call's message. The keys are bytes, which
# distinguish 0.0 from -0.0 and 1 from True. A graph of ten training steps has keys of 6 KiB. Values
# take up to eight times the memory of their key. A full cache is cleared; it takes at most 5 MiB.
_BoundValues = tuple[tuple[int, ...], tuple[Scalar, ...], tuple[Slice, ...]]
_BOUND_VALUES: Final[dict[bytes, _BoundValues]] = {}
BOUND_VALUES_KEPT: Final = 64
LONGEST_BOUND_VALUES_BYTES: Final = 8 * 1024


def _bound_values(sizes: Any, scalars: Any, slices: Any) -> _BoundValues:
    try:
        key = value_key((sizes, scalars, slices))
    except ValueError:  # it has no key: make one that is too long to be cached
        key = bytes(LONGEST_BOUND_VALUES_BYTES + 1)
    found = _BOUND_VALUES.get(key)
    if found is not None:
        return found
    for size in sizes:
        if type(size) is not int or not 0 <= size <= MAX_ELEMENTS:
            raise unexpected("the size of a dimension", size)
    values = tuple(sizes), tuple(map(decode_scalar, scalars)), tuple(map(decode_slice, slices))
    if len(key) <= LONGEST_BOUND_VALUES_BYTES:
        if len(_BOUND_VALUES) >= BOUND_VALUES_KEPT:
            _BOUND_VALUES.clear()
        _BOUND_VALUES[key] = values
    return values


def _seed(wire: Any) -> tuple[Message, ...]:
    return (Seed(_unsigned(wire, "a seed")),)


def _profile_start(wire: Any) -> tuple[Message, ...]:
    request, _ = sequence(wire, 2, "a request and a stream")
    return (Profile(_unsigned(request, "a request"), "ProfileStart"),)


def _profile_end(wire: Any) -> tuple[Message, ...]:
    request, _, _, _ = sequence(wire, 4, "a request, a stream, a token and options")
    return (Profile(_unsigned(request, "a request"), "ProfileEnd"),)


def _profile_abandon(wire: Any) -> tuple[Message, ...]:
    sequence(wire, 2, "a stream and a token")
    return ()


_DECODE_TASK: Final[dict[str, Callable[[Any], tuple[Message, ...]]]] = {
    "Seed": _seed,
    "RegisterOperation": _operation,
    "RegisterAndExecuteGraph": _register_graph,
    "ExecuteGraph": _execute_graph,
    "RegisterTensor": _upload,
    "RegisterAlias": _alias,
    "RegisterTensorRemote": _fetch,
    "ExposeTensorRemote": _expose,
    "ExposeTensorLocal": _expose_locally,
    "RegisterTensorLocal": _fetch_locally,
    "ReadTensor": _read,
    "SyncBackend": _sync,
    "DTypeUsage": _dtype_usage,
    "ProfileStart": _profile_start,
    "ProfileEnd": _profile_end,
    "ProfileAbandon": _profile_abandon,
}
