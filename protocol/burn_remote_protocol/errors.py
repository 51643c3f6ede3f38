"""The tree of errors, and their codes on the wire.

BurnRemoteError
├── ProtocolViolation         a peer sent something that the protocol forbids; ends the session
│   ├── LimitExceeded         … it exceeds a limit
│   └── GarbledBytes          … it does not match its checksum
├── VersionMismatch           no version of the protocol in common
├── HandshakeRefused          the server will not open this session
├── ConnectionLost            the connection broke; pending requests fail with this
│   └── SessionLost           the server no longer knows the session
├── ConnectionFailed          no connection could be opened
├── UsageError                the program called something in an invalid way
│   ├── ShapeMismatch         (also a ValueError)
│   │   └── IndexOutOfRange   (also an IndexError)
│   ├── DTypeMismatch         (also a TypeError)
│   ├── DeviceMismatch        (also a ValueError)
│   ├── ArgumentMismatch      (also a TypeError)
│   └── ClosedDevice
└── OperationFailed           an operation failed on the server; reads of its outputs raise it
    ├── Unsupported           the backend has no implementation of it
    ├── UnknownTensor         it names a tensor that is unknown to the session
    ├── OutOfMemory           the device has too little memory for its result
    ├── QuotaExceeded         a quota of the session is exceeded
    ├── DeviceLost            the device is unusable until its server is restarted
    ├── OperationLost         it did not return, so the server ended its session
    ├── FileUnavailable       the server cannot read or serve one of its own files
    ├── TransferFailed        a tensor could not be moved between servers
    └── CollectiveFailed      a collective could not be carried out by all members of its group

Errors that can cross the wire carry a code (``CODES``); an unknown code arrives as
``OperationFailed``, so a newer server can add one.
"""

from __future__ import annotations

import reprlib
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler

__all__ = [
    "CODES",
    "ArgumentMismatch",
    "BurnRemoteError",
    "ClosedDevice",
    "CollectiveFailed",
    "ConnectionFailed",
    "ConnectionLost",
    "DTypeMismatch",
    "DeviceLost",
    "DeviceMismatch",
    "FileUnavailable",
    "GarbledBytes",
    "HandshakeRefused",
    "IndexOutOfRange",
    "LimitExceeded",
    "OperationFailed",
    "OperationLost",
    "OutOfMemory",
    "ProtocolViolation",
    "QuotaExceeded",
    "SessionLost",
    "ShapeMismatch",
    "TransferFailed",
    "UnknownTensor",
    "Unsupported",
    "UsageError",
    "VersionMismatch",
    "detached",
    "error_from_wire",
    "error_to_wire",
    "fresh",
    "shown",
    "type_name",
]


# Enough for the fields of a typical operation, and short enough for one line of a log.
EXCERPT_CHARACTERS: Final = 200


class _Excerpt(reprlib.Repr):
    """A ``Repr`` that bounds integers and byte buffers before it formats them."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxstring = self.maxother = 80

    def repr_int(self, value: int, level: int) -> str:
        return repr(value) if value.bit_length() <= 128 else f"<{value.bit_length():,}-bit integer>"

    def repr_bytes(self, value: bytes | bytearray | memoryview, level: int) -> str:
        return repr(value) if len(value) <= 16 else f"<{len(value):,} bytes>"

    repr_bytearray = repr_memoryview = repr_bytes

    def repr_FrozenMap(self, value: tuple[Any, ...], level: int) -> str:
        return self.repr_dict(dict(value), level)


_EXCERPT: Final = _Excerpt()


def shown(value: object) -> str:
    """Return a short representation of a peer's value, which may have any size and nesting."""
    text = _EXCERPT.repr(value)
    return text if len(text) <= EXCERPT_CHARACTERS else f"{text[:EXCERPT_CHARACTERS]}…"


def type_name(value: object) -> str:
    """Return the name of a value's type, with its module where that tells it from ours.

    "not Tensor" would not say that a tensor of PyTorch is not one of this package.
    """
    kind = type(value)
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


class BurnRemoteError(Exception):
    """The base class of all errors of burn-remote."""

    code: ClassVar[str] = "error"


E = TypeVar("E", bound=Exception)
Kept = TypeVar("Kept", bound=Exception)


class ProtocolViolation(BurnRemoteError):
    """A peer sent bytes or messages that the protocol forbids; this end closes the session."""

    code = "protocol_violation"


class LimitExceeded(ProtocolViolation):
    """A message exceeds a limit. No memory was allocated for it."""

    code = "limit_exceeded"

    def __init__(self, limit: str, *, seen: int, allowed: int) -> None:
        super().__init__(limit, seen, allowed)
        self.limit = limit
        self.seen = seen
        self.allowed = allowed

    def __str__(self) -> str:
        # A size computed by a program can be an integer of any length.
        seen = f"{self.seen:,}" if self.seen.bit_length() <= 128 else shown(self.seen)
        return f"{self.limit}: seen {seen}, allowed {self.allowed:,}"

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, pickling and copying pass the numbers by position, which ``__init__`` refuses.
        make = partial(type(self), seen=self.seen, allowed=self.allowed)
        return make, (self.limit,), self.__dict__


class GarbledBytes(ProtocolViolation):
    """Bytes do not match their checksum. Sending them again may succeed."""

    code = "garbled_bytes"


class VersionMismatch(BurnRemoteError):
    """Client and server have no version of the protocol in common."""

    code = "version_mismatch"


class HandshakeRefused(BurnRemoteError):
    """The server refuses to open this session; the text says why."""

    code = "refused"


class ConnectionLost(BurnRemoteError, ConnectionError):
    """The connection to a server broke; results that were not yet read are lost.

    ``close_reason`` is the reason that the other end gave when it closed the connection, if any.
    """

    code = "connection_lost"
    close_reason: str = ""


class SessionLost(ConnectionLost):
    """The server no longer holds the session; the text says why.

    Its lease ran out, the server was stopped, or the session's quota was too small for an error.
    """

    code = "session_lost"


class ConnectionFailed(BurnRemoteError, ConnectionError):
    """No connection to the server could be opened; the text says what to check.

    ``http_status`` is the status of an HTTP response that refused the WebSocket, if there was one.
    ``refused_by`` has the numeric addresses that refused a connection, because nothing listens at
    the port.
    """

    code = "connection_failed"
    http_status: int | None = None
    refused_by: frozenset[str] = frozenset()


class UsageError(BurnRemoteError):
    """The program called something in an invalid way; nothing was sent."""

    code = "usage"


class ShapeMismatch(UsageError, ValueError):
    """Incompatible shapes."""

    code = "shape_mismatch"


class IndexOutOfRange(ShapeMismatch, IndexError):
    """An index or an axis that is out of range, or more indices than axes."""

    code = "index_out_of_range"


class DTypeMismatch(UsageError, TypeError):
    """Incompatible dtypes, or an operation that does not exist for a dtype."""

    code = "dtype_mismatch"


class DeviceMismatch(UsageError, ValueError):
    """Tensors of different devices in one operation; move one of them explicitly."""

    code = "device_mismatch"


class ArgumentMismatch(UsageError, TypeError):
    """An argument that the function does not have, or one of the wrong type."""

    code = "argument_mismatch"


class ClosedDevice(UsageError):
    """This program closed the device, or this process is a fork and its parent owns the device."""

    code = "closed_device"


class OperationFailed(BurnRemoteError, RuntimeError):
    """An operation failed on the server. PyTorch and JAX raise ``RuntimeError`` for this, too.

    ``operation`` is its name (``"Numeric.Add"``), ``shapes`` describes its tensors, ``reason`` is
    the server's message, and ``tensor`` is the id of its first output. For an operation of a graph,
    ``step`` is its position in the graph, and ``tensor`` the first output of the graph. The client
    fills in ``location``, the line of the program that issued the operation (``"train.py:31"``).

    ``others`` are further failures that no read had raised when a sync or the end of the session
    raised this one, at most 63; ``others_count`` is how many there were.
    """

    code = "operation_failed"
    others: tuple[OperationFailed, ...] = ()
    others_count: int = 0

    def __init__(
        self,
        reason: str,
        *,
        operation: str = "",
        shapes: str = "",
        tensor: int | None = None,
        location: str = "",
        step: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.operation = operation
        self.shapes = shapes
        self.tensor = tensor
        self.location = location
        self.step = step

    def __str__(self) -> str:
        what = f"{self.operation}({self.shapes}) failed: " if self.operation else ""
        where = f" (issued at {self.location})" if self.location else ""
        return f"{what}{self.reason}{where}"


class Unsupported(OperationFailed):
    """The server's backend has no implementation of the operation."""

    code = "unsupported"


class UnknownTensor(OperationFailed):
    """An operation names a tensor that is unknown to its session."""

    code = "unknown_tensor"


class OutOfMemory(OperationFailed):
    """The device has too little memory for the result."""

    code = "out_of_memory"


class QuotaExceeded(OperationFailed):
    """A quota of the session is exceeded; the text has the quota, the value and the maximum."""

    code = "quota_exceeded"


class DeviceLost(OperationFailed):
    """The server's device is unusable for all sessions until the server is restarted.

    The tensors that it held are lost.
    """

    code = "device_lost"


class OperationLost(OperationFailed):
    """An operation did not return, so the server ended its session.

    A running kernel cannot be stopped: its inputs take memory until it returns.
    """

    code = "operation_lost"


class FileUnavailable(OperationFailed):
    """The server cannot read or serve one of its own files; the text says why."""

    code = "file_unavailable"


class TransferFailed(OperationFailed):
    """A tensor could not be moved between servers."""

    code = "transfer_failed"


class CollectiveFailed(OperationFailed):
    """A collective could not be carried out by all members of its group.

    ``member`` is the rank of the member that failed and ``address`` the peer address of its device;
    ``None`` and empty if no single member is the cause.
    """

    code = "collective_failed"

    def __init__(
        self, reason: str, *, member: int | None = None, address: str = "", **fields: Any
    ) -> None:
        super().__init__(reason, **fields)
        self.member = member
        self.address = address


def _by_code(*errors: type[BurnRemoteError]) -> dict[str, type[BurnRemoteError]]:
    return {error.code: error for error in errors}


CODES: Final = _by_code(
    BurnRemoteError,
    ProtocolViolation,
    LimitExceeded,
    GarbledBytes,
    VersionMismatch,
    HandshakeRefused,
    ConnectionLost,
    SessionLost,
    ConnectionFailed,
    UsageError,
    ShapeMismatch,
    IndexOutOfRange,
    DTypeMismatch,
    DeviceMismatch,
    ArgumentMismatch,
    ClosedDevice,
    OperationFailed,
    Unsupported,
    UnknownTensor,
    OutOfMemory,
    QuotaExceeded,
    DeviceLost,
    OperationLost,
    FileUnavailable,
    TransferFailed,
    CollectiveFailed,
)


def fresh(error: E) -> E:
    """Return a copy of a stored error, so that each raise has its own traceback and notes.

    If the stored error itself were raised, its traceback would grow with each raise, and would keep
    alive whatever the functions in it refer to: the tensors of the program.
    """
    # ``__new__``, not the class itself: some constructors take keywords that ``args`` lacks.
    again = error.__class__.__new__(error.__class__, *error.args)
    again.args = error.args  # which ``MemoryError.__new__`` does not set
    again.__dict__.update(error.__dict__)
    if "__notes__" in again.__dict__:
        again.__notes__ = [*again.__notes__]
    again.__cause__ = error.__cause__
    return again


def detached(error: Kept) -> Kept:
    """Remove an error's references to stack frames, and return it, so that it can be stored.

    Its traceback refers to frames, and so do those of its ``__context__`` and of its causes. The
    frames would keep alive whatever those functions and their callers refer to: arrays, decoded
    messages, and in a local session the tensors of the program.
    """
    each: BaseException | None = error
    seen: set[int] = set()  # ``raise error from error`` makes an error its own cause
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        each.__context__ = None
        each.__traceback__ = None
        each = each.__cause__
    return error


def error_to_wire(error: BurnRemoteError) -> list[Any]:
    """Encode an error as ``[code, reason, operation, shapes, tensor id | nil]``.

    The failure of an operation of a graph has one more element, the operation's position in the
    graph. The failure of a collective that one member caused has three more: the position or nil,
    the member's rank and its address.
    """
    if isinstance(error, CollectiveFailed) and error.member is not None:
        cause = (error.step, error.member, error.address)
        return [error.code, error.reason, error.operation, error.shapes, error.tensor, *cause]
    if isinstance(error, OperationFailed):
        step = () if error.step is None else (error.step,)
        return [error.code, error.reason, error.operation, error.shapes, error.tensor, *step]
    return [error.code, str(error), "", "", None]


def error_from_wire(wire: Any) -> BurnRemoteError:
    """Decode the result of ``error_to_wire``. Raises ``ProtocolViolation`` for any other value."""
    if type(wire) is not tuple and type(wire) is not list:  # others can be unpacked too
        raise ProtocolViolation(f"expected an encoded error, not {shown(wire)}")
    try:
        code, reason, operation, shapes, tensor, *rest = wire
    except (TypeError, ValueError) as error:
        pass_on_of_signal_handler(error)
        raise ProtocolViolation(f"expected an encoded error, not {shown(wire)}") from None
    texts = (code, reason, operation, shapes)
    is_valid = all(type(text) is str for text in texts) and type(tensor) in (int, type(None))
    if not is_valid or not _is_rest(rest):
        raise ProtocolViolation(f"expected an encoded error, not {shown(wire)}")
    kind = CODES.get(code, OperationFailed)
    if issubclass(kind, OperationFailed):
        step = rest[0] if rest else None
        fields = {"operation": operation, "shapes": shapes, "tensor": tensor, "step": step}
        if len(rest) == 3 and kind is CollectiveFailed:
            return CollectiveFailed(reason, member=rest[1], address=rest[2], **fields)
        return kind(reason, **fields)
    if kind is LimitExceeded:
        return ProtocolViolation(reason)
    return kind(reason)


def _is_rest(rest: list[Any]) -> bool:
    """Whether these may be the last elements of an error: a step, a member and its address."""
    kinds = tuple(map(type, rest))
    return kinds in ((), (int,), (type(None), int, str), (int, int, str))
