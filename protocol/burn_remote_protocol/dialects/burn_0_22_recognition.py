"""Decoding of the frames of a Burn 0.22 client, which repeat what was decoded before.

A client repeats names, shapes and dtypes in each operation, and its programs repeat sequences of
operations. So most messages differ from an earlier one only in numbers: the ids of tensors, and the
numbers of requests. The bytes between those are the key of a cache of decoded messages, which all
sessions share. The message that followed last time usually follows again, with numbers of the same
lengths: one comparison verifies that, in a quarter of the time that a search for the numbers takes.

Messages are recognized one by one, because a client fills each frame with the next four messages,
wherever a step of its program begins. If the number of messages in a step is no multiple of four,
frames repeat only after several steps. So the frame that followed the same two messages last time
is compared first, as a whole: that takes a quarter of the time of comparing message by message. A
frame that matches is returned undivided, as a ``KnownFrame``.

A call of a graph repeats its numbers, sizes and slices, up to 6 KiB, and differs only in the ids of
the tensors that it binds. Frames with such calls are not recognized as wholes, because the cost of
a call changes when the server compiles the graph. A call is cached when it comes a second time.
Some calls never do: an optimizer may count its steps in the numbers of its calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, overload

import msgpack

from burn_remote_protocol.dialects.burn_0_22 import (
    Bindings,
    Message,
    PackedMessage,
    RunGraph,
    decode_messages,
    each_message,
)
from burn_remote_protocol.dialects.message_layouts import Layout, LayoutBuilder
from burn_remote_protocol.errors import BurnRemoteError, ProtocolViolation
from burn_remote_protocol.messages import Drop, Read, Sync
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.operations.wire_values import Scalar
from burn_remote_protocol.tensors import Slice, TensorSpec

__all__ = [
    "FinalRead",
    "FrameLayout",
    "FrameParts",
    "KnownFrame",
    "MessageRecognizer",
    "Part",
]

# Messages kept by the bytes between their numbers, up to 4 KiB each. When programs have more
# distinct messages, the cache is cleared.
MESSAGES_KEPT: Final = 4096
# Calls of graphs kept in the same way, up to 8 KiB each. Keys and values take up to 22 times the
# length of a call, so all take at most 11 MiB.
CALLS_KEPT: Final = 64
# Hashes kept per session of calls that came once. All take at most 100 KiB.
CALLS_NOTED: Final = 1024
# Layouts of messages kept per session, and the sum of these messages' lengths, to which each number
# adds ``NUMBER_BYTES``. A layout takes up to eight times that, so all take at most 2 MiB.
LAYOUTS_KEPT: Final = 1024
LAYOUT_BYTES_KEPT: Final = 256 * 1024
NUMBER_BYTES: Final = 16
# Frames kept per session as wholes, and the sum of their lengths. A frame takes up to six times its
# length, so all take at most 3 MiB. A program with an odd number of messages in a step has as many
# different frames as a step has messages.
FRAMES_KEPT: Final = 1024
FRAME_BYTES_KEPT: Final = 512 * 1024
LONGEST_KNOWN_FRAME_BYTES: Final = 2048

# Longer messages are decoded in full. An operation on three tensors has 100 to 150 bytes.
LONGEST_RECOGNIZED_BYTES: Final = 2048
# A call of ten training steps has 6 KiB.
LONGEST_CALL_BYTES: Final = 8192
# Longer frames are decoded in full. Decoding the calls of one for the first time takes 2 ms.
LONGEST_FRAME_BYTES: Final = 4 * LONGEST_CALL_BYTES

_TASK: Final = b"\x81\xa4Task"
_CALL: Final = _TASK + b"\x81\xacExecuteGraph"
# The beginnings of messages that are worth a search: others hold elements, or are rare.
_WORTH_A_SEARCH: Final = (
    _TASK + b"\x81\xb1RegisterOperation",
    _TASK + b"\x81\xaaReadTensor",
    _TASK + b"\x81\xabSyncBackend",
    _CALL,
)

_UNSIGNED: Final = rb"(?:[\x00-\x7f]|\xcc.|\xcd..|\xce.{4}|\xcf.{8})"
# The number of a request, or the id of a tensor. A tensor is an array of four elements. The first
# is an array that holds the id, the second an array that holds the shape.
_NUMBER: Final = re.compile(
    rb"(\x94\x91|ReadTensor\x93|SyncBackend\x92)(" + _UNSIGNED + rb")(?=\x91[\x00-\x9f\xcc-\xdc])",
    re.DOTALL,
)

# The id of a tensor that a call binds to a relative one. A pair or the array of sizes follows.
_BOUND: Final = re.compile(
    rb"(\x92\x91" + _UNSIGNED + rb"\x91)(" + _UNSIGNED + rb")(?=\x92\x91|[\x90-\x9f\xdc\xdd])",
    re.DOTALL,
)

# Numbers that no client uses. They replace those of a message to verify where it has them.
_UNUSED: Final = 2**64 - 2**32

# Makes the messages of a layout from their numbers. For an operation, the cache has the signature.
_Make = Callable[[tuple[int, ...]], tuple[Message, ...]]
_KNOWN: Final[dict[tuple[bytes, ...], Signature | _Make | None]] = {}

_CALLS: Final[dict[tuple[bytes, ...], _Make | None]] = {}


class _MessageLayout(Layout):
    """The layout of messages that differ only in their numbers, and their signature or ``make``."""

    __slots__ = ("count", "is_call", "make", "signature")

    def __init__(self, pieces: list[bytes], known: Signature | _Make, *, is_call: bool) -> None:
        builder = LayoutBuilder()
        for place in range(0, len(pieces) - 1, 3):
            builder.literal(pieces[place] + pieces[place + 1])
            builder.number(pieces[place + 2])
        builder.literal(pieces[-1])
        super().__init__(builder)
        self.count: Final = len(pieces) // 3  # of the numbers
        self.is_call: Final = is_call
        self.signature: Final = known if isinstance(known, Signature) else None
        self.make: Final[_Make] = _nothing if isinstance(known, Signature) else known


def _nothing(_: tuple[int, ...]) -> tuple[Message, ...]:
    raise AssertionError("an operation is made of its signature")


# The last two messages; ``None`` for one that has no layout.
_Context = tuple[_MessageLayout | None, _MessageLayout | None]


class Part(NamedTuple):
    """One message of a frame's layout. Its numbers are ``numbers[start:stop]`` of the frame.

    It is an operation with ``signature``, or what ``make(numbers)`` returns.
    """

    signature: Signature | None
    make: _Make
    start: int
    stop: int


class FrameParts:
    """Some consecutive messages of a frame's layout, and their length in bytes."""

    __slots__ = ("length", "parts")

    def __init__(self, parts: tuple[Part, ...], length: int) -> None:
        self.parts: Final = parts
        self.length: Final = length


class FinalRead(NamedTuple):
    """The read at the end of a frame: the place of its tensor among the frame's numbers.

    ``before`` are the messages before the read; ``None`` if there are none. ``alone`` is the read.
    """

    tensor: int
    before: FrameParts | None
    alone: FrameParts


class FrameLayout(Layout):
    """The layout of frames that differ in their numbers.

    ``only_operations``: each message is an operation.
    """

    __slots__ = ("context", "final_read", "only_operations", "parts")

    def __init__(self, messages: Sequence[_MessageLayout]) -> None:
        builder = LayoutBuilder()
        builder.literal(bytes((0x90 + len(messages),)))
        parts = []
        start = 0
        for message in messages:
            builder.layout(message)
            parts.append(Part(message.signature, message.make, start, start + message.count))
            start += message.count
        super().__init__(builder)
        self.parts: Final = tuple(parts)
        self.context: Final = (messages[-2], messages[-1])
        self.only_operations: Final = all(part.signature is not None for part in parts)
        self.final_read: Final = self._final_read(messages[-1].length)

    def _final_read(self, length: int) -> FinalRead | None:
        *before, last = self.parts
        if getattr(last.make, "func", None) not in (_read, _last_read):
            return None
        if any(part.signature is None for part in before):
            return None
        parts = FrameParts(tuple(before), self.length - length) if before else None
        return FinalRead(last.start + 1, parts, FrameParts((last,), length))


class KnownFrame(Sequence[Message]):
    """A frame of a known layout: a sequence of messages, which are made when they are asked for.

    It may also be a part of a frame, with the numbers of the whole frame.

    ``messages`` also has the ``Drop`` that follows a read if it is a tensor's last use.
    """

    __slots__ = ("layout", "numbers")

    def __init__(self, layout: FrameLayout | FrameParts, numbers: tuple[int, ...]) -> None:
        self.layout: Final = layout
        self.numbers: Final = numbers

    def __len__(self) -> int:
        return len(self.layout.parts)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return self._made(self.layout.parts[index])[0]

    def messages(self) -> list[Message]:
        """Return what ``decode_messages`` returns for the frame."""
        return [message for part in self.layout.parts for message in self._made(part)]

    def _made(self, part: Part) -> tuple[Message, ...]:
        signature, make, start, stop = part
        numbers = self.numbers[start:stop]
        return make(numbers) if signature is None else (Operation(signature, numbers),)


class MessageRecognizer:
    """Decodes one session's frames, predicting each message from the one before.

    ``unknown`` counts the messages that were decoded in full or had a new layout. Decoding such a
    message takes up to 100 µs, any other 1 to 5 µs.
    """

    def __init__(self) -> None:
        self.unknown = 0
        self._layouts: dict[tuple[Any, ...], _MessageLayout] = {}
        self._layout_bytes = 0
        self._noted_calls: set[int] = set()
        self._successors: dict[_MessageLayout | None, _MessageLayout] = {}
        self._last: _MessageLayout | None = None
        # Frames by the layouts of their messages; ``None`` for frames that came only once.
        self._frames: dict[tuple[_MessageLayout, ...], FrameLayout | None] = {}
        self._frame_bytes = 0
        # Frames by the two messages before them.
        self._next_frames: dict[_Context, FrameLayout] = {}
        self._context: _Context = (None, None)

    def recognize(self, frame: bytes | memoryview) -> KnownFrame | None:
        """Return a frame undivided if it is the expected one; ``decode`` decodes any other."""
        layout = self._next_frames.get(self._context)
        if (
            layout is None
            or len(frame) != layout.length
            or int.from_bytes(frame, "big") & layout.mask != layout.pattern
        ):
            return None
        self._context = layout.context
        self._last = layout.context[1]
        return KnownFrame(layout, layout.read(frame))

    def decode(self, frame: bytes | memoryview) -> list[Message | ProtocolViolation]:
        """Decode a frame as ``decode_messages`` does, in less time if its messages are known."""
        # The link delivers only long messages as views.
        if type(frame) is not bytes or not b"\x90" < frame[:1] <= b"\x9f":
            self.unknown += 1
            return decode_messages(frame)
        decoded, left, place = self._recognized(frame)
        if not left:
            return decoded
        self.unknown += left
        if place == 1:
            return decode_messages(frame)
        return decoded + decode_messages(bytes((0x90 + left,)) + frame[place:])

    def each_message(
        self, frame: bytes | memoryview
    ) -> Iterator[Message | ProtocolViolation | None]:
        """Yield the messages of a long frame as ``burn_0_22.each_message`` does.

        It takes less time if all messages are known.
        """
        if len(frame) <= LONGEST_FRAME_BYTES and b"\x90" < bytes(frame[:1]) <= b"\x9f":
            decoded, left, _ = self._recognized(bytes(frame))
            if not left:
                yield from decoded
                return
        self._last, self._context = None, (None, None)
        for message in each_message(frame):
            self.unknown += message is not None
            yield message

    def _recognized(self, frame: bytes) -> tuple[list[Message | ProtocolViolation], int, int]:
        """Return the messages up to the first unknown one, how many are left, and its place.

        All messages are left if bytes follow the last one.
        """
        decoded: list[Message | ProtocolViolation] = []
        successors, last = self._successors, self._last
        layouts: list[_MessageLayout | None] = []
        place = 1
        for count in range(frame[0] - 0x90, 0, -1):
            layout = successors.get(last)
            if layout is not None:
                message = frame[place : place + layout.length]
            if layout is None or int.from_bytes(message, "big") & layout.mask != layout.pattern:
                message = self._next(frame, place)
                layout = self._search(message)
                if layout is None:
                    call = _call_alone(message)
                    if call is None:
                        self._last = None
                        self._context = (None, None)
                        return decoded, count, place
                    decoded.append(call)
                    layouts.append(None)
                    place += len(message)
                    last = None
                    continue
                successors[last] = layout
            if layout.signature is not None:
                decoded.append(Operation(layout.signature, layout.read(message)))
            else:
                decoded += layout.make(layout.read(message))
            layouts.append(layout)
            place += layout.length
            last = layout
        self._last = last
        if place != len(frame):
            return [], len(layouts), 1
        self._expect(layouts, place)
        return decoded, 0, place

    def _expect(self, messages: list[_MessageLayout | None], size: int) -> None:
        """Note a frame; if it came before, expect it after the same two messages next time."""
        if len(messages) < 2:
            self._context = (self._context[1], messages[0])
            return
        layouts = [one for one in messages if one is not None]
        if size <= LONGEST_KNOWN_FRAME_BYTES and len(layouts) == len(messages):
            key = tuple(layouts)
            try:
                known = self._frames[key]
            except KeyError:
                self._frame_bytes += size
                if len(self._frames) >= FRAMES_KEPT or self._frame_bytes > FRAME_BYTES_KEPT:
                    self._forget_frames()
                    self._frame_bytes = size
                self._frames[key] = None
            else:
                if known is None and not any(layout.is_call for layout in layouts):
                    known = self._frames[key] = FrameLayout(layouts)
                if known is None:
                    self._context = (messages[-2], messages[-1])
                    return
                if len(self._next_frames) >= FRAMES_KEPT:
                    self._next_frames.clear()
                self._next_frames[self._context] = known
        self._context = (messages[-2], messages[-1])

    def _forget_frames(self) -> None:
        self._frames.clear()
        self._frame_bytes = 0
        self._next_frames.clear()

    def _next(self, frame: bytes, place: int) -> bytes:
        """Return the bytes up to the next message; a bounded number of bytes if none is found."""
        longest = place + _longest(frame, place)
        end = frame.find(_TASK, place + 1, longest)
        return frame[place : longest if end < 0 else end]

    def _search(self, message: bytes) -> _MessageLayout | None:
        """Return the layout of one message; ``None`` if it must be decoded in full."""
        if not message.startswith(_WORTH_A_SEARCH) or len(message) == _longest(message, 0):
            return None
        is_call = message.startswith(_CALL)
        # Repeatedly a literal, the bytes before a number and the number; then the last literal.
        pieces = (_BOUND if is_call else _NUMBER).split(message)
        key = (*pieces[::3], *pieces[1::3])
        known: Signature | _Make | None
        try:
            known = _CALLS[key] if is_call else _KNOWN[key]
        except KeyError:
            self.unknown += 1
            if is_call and not self._came_before(key):
                return None
            known = _learn_call(key, pieces) if is_call else _learn(key, pieces)
        if known is None:
            return None
        shape = (key, *map(len, pieces[2::3]))
        layout = self._layouts.get(shape)
        if layout is None:
            size = len(message) + NUMBER_BYTES * (len(pieces) // 3)
            self._layout_bytes += size
            if len(self._layouts) >= LAYOUTS_KEPT or self._layout_bytes > LAYOUT_BYTES_KEPT:
                self._layouts.clear()
                self._layout_bytes = size
                self._successors.clear()
                self._forget_frames()
            layout = _MessageLayout(pieces, known, is_call=is_call)
            self._layouts[shape] = layout
        return layout

    def _came_before(self, key: tuple[bytes, ...]) -> bool:
        """Return whether a call with a key came before, and note it."""
        noted = hash(key)  # a call with an equal hash only makes this one be cached earlier
        if noted in self._noted_calls:
            return True
        if len(self._noted_calls) >= CALLS_NOTED:
            self._noted_calls.clear()
        self._noted_calls.add(noted)
        return False


def _learn(key: tuple[bytes, ...], pieces: list[bytes]) -> Signature | _Make | None:
    """Cache what the messages with a key have in common; ``None`` if they must be decoded in full.

    Bytes that look like the beginning of a tensor could be part of another value. The message is
    therefore decoded once with other numbers at the places found. If the result has exactly those
    numbers, the places are correct.
    """
    known: Signature | _Make | None = None
    unused, found = _decoded_unused(pieces)
    match found:
        case [Operation(signature, tensors)] if tensors == unused:
            known = signature
        case [Sync(request)] if (request,) == unused:
            known = _sync
        case [Read(request, tensor, spec)] if (request, tensor) == unused:
            known = partial(_read, spec)
        case [Read(request, tensor, spec), Drop((other,))] if (
            request,
            tensor,
        ) == unused and other == tensor:
            known = partial(_last_read, spec)
    if len(_KNOWN) >= MESSAGES_KEPT:
        _KNOWN.clear()
    _KNOWN[key] = known
    return known


def _learn_call(key: tuple[bytes, ...], pieces: list[bytes]) -> _Make | None:
    """Cache what the calls of a graph with a key have in common, as ``_learn`` does."""
    known: _Make | None = None
    unused, found = _decoded_unused(pieces)
    match found:
        case [RunGraph(graph, None, (tensors, sizes, scalars, slices))] if (
            tuple([new for _, new in tensors]) == unused
        ):
            relative = tuple([old for old, _ in tensors])
            known = partial(_call, graph, relative, sizes, scalars, slices)
    if len(_CALLS) >= CALLS_KEPT:
        _CALLS.clear()
    _CALLS[key] = known
    return known


def _decoded_unused(
    pieces: list[bytes],
) -> tuple[tuple[int, ...], Sequence[Message | ProtocolViolation]]:
    """Decode a message with other numbers at the places found; return these and the result."""
    unused = tuple(range(_UNUSED, _UNUSED + len(pieces) // 3))
    changed = [*pieces]
    changed[2::3] = [msgpack.packb(number) for number in unused]
    try:
        return unused, decode_messages(b"\x91" + b"".join(changed))
    except BurnRemoteError:
        return unused, ()


def _call_alone(message: bytes) -> RunGraph | None:
    """Decode the bytes up to the next message in full; ``None`` if they are not one valid call."""
    if not message.startswith(_CALL) or len(message) == LONGEST_CALL_BYTES:
        return None
    match PackedMessage(message, None).decode():
        case [RunGraph() as call]:
            return call
    return None


def _longest(frame: bytes, place: int) -> int:
    """Return the length from which on a message is not recognized."""
    return LONGEST_CALL_BYTES if frame.startswith(_CALL, place) else LONGEST_RECOGNIZED_BYTES


def _call(
    graph: int,
    relative: tuple[int, ...],
    sizes: tuple[int, ...],
    scalars: tuple[Scalar, ...],
    slices: tuple[Slice, ...],
    numbers: tuple[int, ...],
) -> tuple[Message, ...]:
    tensors = tuple(zip(relative, numbers, strict=True))
    return (RunGraph(graph, None, Bindings(tensors, sizes, scalars, slices)),)


def _sync(numbers: tuple[int, ...]) -> tuple[Message, ...]:
    return (Sync(numbers[0]),)


def _read(spec: TensorSpec, numbers: tuple[int, ...]) -> tuple[Message, ...]:
    return (Read(numbers[0], numbers[1], spec),)


def _last_read(spec: TensorSpec, numbers: tuple[int, ...]) -> tuple[Message, ...]:
    return (Read(numbers[0], numbers[1], spec), Drop((numbers[1],)))
