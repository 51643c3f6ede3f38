"""Resident memory of a real server under clients that try to take more than their limits.

Each attack uses memory in another way: tensors that views keep alive, exposed tensors, unread
responses, messages that never end. The server's growth must stay within 1.25 times its limit, and
it must serve another client meanwhile.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import msgpack

import burn_remote as br
from burn_remote_protocol.dialects.burn_0_21 import encode_init, encode_tasks, request_id
from burn_remote_protocol.dialects.burn_0_22 import SessionInit
from burn_remote_protocol.dialects.burn_0_22 import encode_init as encode_init_0_22
from burn_remote_protocol.dialects.native import (
    CHUNK_BYTES,
    VERSIONS,
    chunk_head,
    encode_batch,
    encode_frame,
)
from burn_remote_protocol.dialects.native_tasks import encode_task
from burn_remote_protocol.messages import (
    BeginUpload,
    Define,
    DefineGraph,
    Drop,
    Execute,
    Expose,
    Fetch,
    FetchRequest,
    Hello,
    Publish,
    Read,
    Sync,
    Task,
)
from burn_remote_protocol.operations.families.session import CUSTOM
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.operations.table import sign
from burn_remote_protocol.operations.wire_values import Scalar, TensorUse
from burn_remote_protocol.tensors import Slice, TensorSpec, TensorStatus
from endurance.processes import Probe
from support.kernels import signature
from support.servers import UNFORKED, RunningServer, server
from support.specs import f32

__all__ = ["ATTACKS", "Outcome", "attack"]

KIB: Final = 2**10
MIB: Final = 2**20
SCALAR: Final = f32(1)

# Allowed growth of resident memory during an attack, as a multiple of the limit.
ALLOWED: Final = 1.25

# Sessions that multiply matrices in an attack.
SESSIONS: Final = 6
# The sides of the matrices that are multiplied before an attack, and in ``queued_frames``, which
# needs more of OpenBLAS's memory: 4 MiB for each thread in place of 2.
SMALL_SIDE: Final = 512
SIDE: Final = 1024
# Products of each session before an attack: enough that all sessions once multiply together.
BASE_ROUNDS: Final = 8

# How long an attacker waits for the server to continue reading before it moves on.
SEND_SECONDS: Final = 0.25
# Timeout for the server to execute everything it was sent.
QUIET_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Outcome:
    """The effect of an attack on a server."""

    name: str
    limit_bytes: int
    base_bytes: int
    peak_bytes: int
    healthz_milliseconds: float

    @property
    def grown_bytes(self) -> int:
        """Resident memory at its peak, above that before the attack."""
        return self.peak_bytes - self.base_bytes

    @property
    def is_within_limit(self) -> bool:
        """Whether that is at most 1.25 times the limit."""
        return self.grown_bytes <= ALLOWED * self.limit_bytes


class Wire:
    """A WebSocket client that sends arbitrary bytes and does not read."""

    def __init__(self, address: str, route: str) -> None:
        parts = urlsplit(address)
        assert parts.hostname and parts.port
        self._socket = socket.create_connection((parts.hostname, parts.port), 10)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        self._socket.sendall(
            f"GET /{route} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += self._socket.recv(1)
        assert b" 101 " in answer
        self._socket.settimeout(SEND_SECONDS)

    def send(self, message: bytes, announced: int | None = None) -> bool:
        """Send a message or its beginning; return ``False`` if the server stops reading."""
        size = len(message) if announced is None else announced
        # The masking key is zero, which leaves the payload as it is.
        head = bytes([0x82, 0xFF]) + struct.pack(">Q", size) + bytes(4)
        try:
            self._socket.sendall(head)
            self._socket.sendall(message)
        except OSError:
            return False
        return True

    def say(self, *tasks: Task) -> bool:
        """Send a batch of the native dialect."""
        return self.send(encode_batch(0, [encode_task(task) for task in tasks]))

    def invoke(self, invocations: Sequence[Sequence[int]]) -> bool:
        """Send a batch of invocations: a signature's number and tensor ids."""
        return self.send(encode_batch(0, [msgpack.packb(each) for each in invocations]))

    def hear(self) -> None:
        """Wait until the server sends something."""
        self._socket.settimeout(QUIET_SECONDS)
        assert self._socket.recv(4096)
        self._socket.settimeout(SEND_SECONDS)

    def close(self) -> None:
        """Break the connection."""
        self._socket.close()


def _native(address: str) -> Wire:
    wire = Wire(address, "session")
    wire.send(encode_frame(Hello((1,))))
    wire.hear()  # the welcome: before it, the server accepts only small messages
    return wire


def _burn(address: str) -> tuple[Wire, Wire]:
    identifier = secrets.randbits(63)
    wires = Wire(address, "request"), Wire(address, "response")
    for wire in wires:
        wire.send(encode_init(identifier))
    return wires


def _full(tensor: int, spec: TensorSpec) -> Execute:
    return Execute(Operation(signature("Numeric.Full", out=spec, value=1.0), (tensor,)))


def _doubled(tensor: int, result: int, spec: TensorSpec) -> Execute:
    made = signature("Numeric.MulScalar", spec, rhs=2.0)
    return Execute(Operation(made, (tensor, result)))


# The shape, status and dtype of a tensor that an operation of Burn 0.22 makes.
_NEW: Final = ([[0]], "NotInit", "F32")


def _floats(size: float) -> TensorSpec:
    return f32(int(size) // 4)


def views(address: str, limit: int) -> Iterable[Wire]:
    """Keep a quarter of each of many tensors."""
    with br.RemoteDevice(address) as device:
        kept = []
        with contextlib.suppress(br.QuotaExceeded):
            for _ in range(4 * limit // (2 * MIB)):
                tensor = br.full((MIB // 2,), 1.0, device=device)
                kept.append(tensor[: MIB // 8])
                del tensor
                device.sync()
    return ()


def scattered(address: str, limit: int) -> Iterable[Wire]:
    """Drop all but a few of many small tensors, and make large ones."""
    with br.RemoteDevice(address) as device:
        small = [br.ones((25 * 1024,), device=device) for _ in range(limit * 3 // 4 // (100 * KIB))]
        device.sync()
        kept = small[::50]  # in the allocator's heap, they lie between the freed ones
        del small
        device.sync()
        large = [br.ones((2 * MIB,), device=device) for _ in range(limit * 3 // 4 // (8 * MIB) - 1)]
        device.sync()
        assert kept and large
    return ()


def exposed(address: str, limit: int) -> Iterator[Wire]:
    """Expose tensors that nobody fetches, and drop them."""
    spec = _floats(0.3 * limit)
    for _ in range(8):
        wire = _native(address)
        for tensor in range(2):
            wire.say(_full(tensor, spec), Expose(tensor, spec, 1, secrets.token_bytes(32), 300.0))
            wire.say(Drop((tensor,)))
        yield wire


def slow_readers(address: str, limit: int) -> Iterator[Wire]:
    """Ask for tensors, drop them, and do not read them."""
    spec = _floats(0.3 * limit)
    for _ in range(6):
        wire = _native(address)
        wire.say(_full(0, spec))
        for request in range(1, 7):
            wire.say(_doubled(0, request, spec), Read(request, request, spec), Drop((request,)))
        yield wire


def slow_readers_of_copies(address: str, limit: int) -> Iterator[Wire]:
    """Ask for a transposed tensor again and again: each reply is a copy."""
    columns = 512
    rows = int(0.2 * limit) // (4 * columns)
    turned = f32(columns, rows)
    turn = signature("Base.SwapDims", f32(rows, columns), dim1=0, dim2=1)
    for _ in range(6):
        wire = _native(address)
        wire.say(_full(0, f32(rows, columns)), Execute(Operation(turn, (0, 1))))
        wire.say(*(Read(request, 1, turned) for request in range(1, 9)))
        yield wire


def small_answers(address: str, limit: int) -> Iterator[Wire]:
    """Ask for tensors of 16 KiB, whose elements are copied into the replies, 200,000 times."""
    spec = _floats(16 * 1024)
    reads = [Read(request, 0, spec) for request in range(1, 4096)]
    for _ in range(4):
        wire = _native(address)
        wire.say(_full(0, spec))
        for _ in range(12):
            wire.say(*reads)
        yield wire


def unfinished_messages(address: str, limit: int) -> Iterator[Wire]:
    """Send a frame of 60 MiB except for its last byte."""
    size = 60 * MIB
    for _ in range(8):
        wire = _native(address)
        wire.send(bytes([3]) * (size - 1), announced=size)
        yield wire


def unfinished_frames_of_refused_sessions(address: str, limit: int) -> Iterator[Wire]:
    """Send a frame of 1 MB except for its last byte over each of 200 connections.

    When the memory is full, the server refuses the sessions of the others, which send nevertheless.
    """
    size = 10**6
    for _ in range(200):
        wire = Wire(address, "session")
        wire.send(encode_frame(Hello(VERSIONS)))
        with contextlib.suppress(OSError):
            wire.hear()
        wire.send(bytes([3]) * (size - 1), announced=size)
        yield wire


def unfinished_burn_messages(address: str, limit: int) -> Iterator[Wire]:
    """Send a message of three quarters of the limit except for its last byte."""
    size = int(0.75 * limit)
    for _ in range(8):
        requests, responses = _burn(address)
        requests.send(bytes([1]) * (size - 1), announced=size)
        yield requests
        yield responses


def slow_burn_readers(address: str, limit: int) -> Iterator[Wire]:
    """Ask for large tensors in Burn's dialect, drop them, and do not read them."""
    return _slow_burn_readers(address, _floats(0.3 * limit), readers=6)


def slow_burn_readers_of_whole_messages(address: str, limit: int) -> Iterator[Wire]:
    """Ask for tensors that the server sends as whole messages, drop them, and do not read them."""
    return _slow_burn_readers(address, _floats(min(0.09 * limit, 15 * MIB)), readers=24)


def _slow_burn_readers(address: str, spec: TensorSpec, *, readers: int) -> Iterator[Wire]:
    for _ in range(readers):
        requests, responses = _burn(address)
        position = 0
        tasks: Sequence[Task]
        for result in range(1, 7):
            identity = request_id(1000 + result, 0)
            read: list[Task] = [Read(identity, result, spec), Drop((result,))]
            for tasks in ([_full(result, spec)], read):
                position += 1
                requests.send(encode_tasks(tasks, request_id(position, 0)))
        yield requests
        yield responses


def unfinished_uploads(address: str, limit: int) -> Iterator[Wire]:
    """Begin uploads, and send all chunks but the last."""
    spec = _floats(8 * MIB)
    for _ in range(4):
        wire = _native(address)
        for tensor in range(limit // (8 * MIB)):
            wire.say(BeginUpload(tensor, spec, spec.nbytes))
            for start in range(0, spec.nbytes - CHUNK_BYTES, CHUNK_BYTES):
                wire.send(chunk_head(tensor, start) + bytes(CHUNK_BYTES))
        yield wire


def dropped_uploads(address: str, limit: int) -> Iterator[Wire]:
    """Upload and drop tensors: the server keeps some of their memory for later arrivals."""
    wire = _native(address)
    for tensor in range(4 * limit // (4 * MIB)):
        # Sizes differ, so that no tensor fits into the memory of another.
        spec = _floats(4 * MIB + 512 * 1024 * (tensor % 16))
        wire.say(BeginUpload(tensor, spec, spec.nbytes))
        for start in range(0, spec.nbytes, CHUNK_BYTES):
            size = min(CHUNK_BYTES, spec.nbytes - start)
            wire.send(chunk_head(tensor, start) + bytes(size))
        wire.say(Drop((tensor,)))
    yield wire


def queued_frames(address: str, limit: int) -> Iterator[Wire]:
    """Send tensors after an operation that takes long."""
    square = f32(SIDE, SIDE)
    product = Execute(Operation(signature("Float.Matmul", square, square), (0, 0, 1)))
    spec = _floats(3 * MIB)
    for _ in range(SESSIONS):
        wire = _native(address)
        wire.say(_full(0, square))
        wire.say(*[product] * 20)
        for tensor in range(2, 2 + 2 * limit // spec.nbytes):
            # A frame that is no chunk has at most 512 KiB.
            is_read = wire.say(BeginUpload(tensor, spec, spec.nbytes))
            for start in range(0, spec.nbytes, CHUNK_BYTES):
                size = min(CHUNK_BYTES, spec.nbytes - start)
                is_read = is_read and wire.send(chunk_head(tensor, start) + bytes(size))
            if not is_read:
                break
        yield wire


def failures(address: str, limit: int) -> Iterator[Wire]:
    """Keep the outputs of 400,000 operations that fail by themselves."""
    made = signature("Base.Reshape", SCALAR, out=f32(1, 1))
    for _ in range(2):
        wire = _native(address)
        wire.say(Define(0, made))
        for first in range(10, 200_010, 2000):
            wire.invoke([[0, 7, output] for output in range(first, first + 2000)])
        yield wire


def passed_failures(address: str, limit: int) -> Iterator[Wire]:
    """Keep the outputs of 1,000,000 operations on a tensor that failed."""
    made = signature("Base.Reshape", SCALAR, out=f32(1, 1))
    for _ in range(2):
        wire = _native(address)
        wire.say(Define(0, made))
        wire.invoke([[0, 7, 8]])
        for first in range(10, 500_010, 4000):
            wire.invoke([[0, 8, output] for output in range(first, first + 4000)])
        yield wire


def tiny_tensors(address: str, limit: int) -> Iterator[Wire]:
    """Keep 1,800,000 tensors of one element."""
    for _ in range(2):
        wire = _native(address)
        wire.say(Define(0, signature("Base.Zeros", out=SCALAR)))
        for first in range(10, 900_010, 4000):
            wire.invoke([[0, output] for output in range(first, first + 4000)])
        yield wire


def tiny_tensors_of_many_dimensions(address: str, limit: int) -> Iterator[Wire]:
    """Keep 600,000 tensors of one element and 32 dimensions."""
    for _ in range(2):
        wire = _native(address)
        wire.say(Define(0, signature("Base.Zeros", out=f32(*[1] * 32))))
        for first in range(10, 300_010, 4000):
            wire.invoke([[0, output] for output in range(first, first + 4000)])
        yield wire


def inputs_of_refused_operations(address: str, limit: int) -> Iterator[Wire]:
    """Use each tensor in a refused operation of its own, and drop it."""
    size = int(0.3 * limit) // 4
    for _ in range(2):
        wire = _native(address)
        for number in range(12):
            wire.say(_full(number, f32(size)))
            too_large = signature("Base.Expand", f32(1, size), out=f32(limit + number, size))
            wire.say(Execute(Operation(too_large, (number, 100 + number))), Drop((number,)))
        yield wire


def numbers_of_graphs(address: str, limit: int) -> Iterator[Wire]:
    """Define graphs of one step with 4,096 numbers."""
    made = signature("Numeric.AddScalar", SCALAR, rhs=2.0)
    numbers = tuple((0, 1, place) for place in range(4096))
    for _ in range(2):
        wire = _native(address)
        wire.say(Define(0, made))
        for graph in range(4096, 4352):
            wire.say(DefineGraph(graph, 1, ((0, 0),), (1,), numbers))
        yield wire


def numbered_steps_of_graphs(address: str, limit: int) -> Iterator[Wire]:
    """Define graphs of 2,000 steps with a number, and run each."""
    made = signature("Numeric.Clamp", SCALAR, min=1.0, max=2.0)
    low = [field.name for field in made.row.fields].index("min")
    steps = tuple((0, slot) for slot in range(2000))
    numbers = tuple((place, low, 0) for place in range(2000))
    for _ in range(2):
        wire = _native(address)
        wire.say(Define(0, made), _full(1, SCALAR))
        for graph in range(4096, 4196):
            wire.say(DefineGraph(graph, 1, steps, (2000,), numbers))
            wire.send(encode_batch(0, [msgpack.packb([graph, 1, graph, [0.5]])]))
        yield wire


def exposed_failures(address: str, limit: int) -> Iterator[Wire]:
    """Expose 16,000 tensors that the session does not have."""
    for _ in range(6):
        wire = _native(address)
        for _ in range(16):
            wire.say(*(Expose(7, SCALAR, 1, secrets.token_bytes(32), 300.0) for _ in range(1000)))
        yield wire


def waiting_fetches(address: str, limit: int) -> Iterator[Wire]:
    """Fetch 16,000 tensors that nobody exposes, from the server itself, in each of 6 sessions."""
    for _ in range(6):
        wire = _native(address)
        for first in range(0, 16_000, 1000):
            transfers = [secrets.token_bytes(32) for _ in range(1000)]
            wire.say(*(Fetch(each, address, n, SCALAR) for n, each in enumerate(transfers, first)))
        yield wire


def values_of_registered_graphs(address: str, limit: int) -> Iterator[Wire]:
    """Call graphs of one operation of Burn 0.22 with thousands of values that it does not use."""
    place, made = [[[0], [[0]], status, "F32"] for status in ("ReadOnly", "NotInit")]
    step = {"NumericFloat": ["F32", {"Add": [place, place, [[1], *made[1:]]]}]}
    for _ in range(2):
        wire = Wire(address, "session")
        wire.send(encode_init_0_22(SessionInit(2, secrets.randbits(63), 0, b"")))
        wire.hear()
        for graph in range(60):
            for call in range(8):
                bindings = [
                    [[[0], [1]], [[1], [2]]],
                    [2, *range(call, call + 4000)],
                    [{"UInt": 90_000 + each} for each in range(4000)],
                    [[1000 + each, 2000, 1] for each in range(4000)],
                ]
                task = {"ExecuteGraph": [[0], graph, bindings]}
                if not call:
                    task = {"RegisterAndExecuteGraph": [[0], graph, [step], bindings]}
                wire.send(msgpack.packb([{"Task": task}]))
        yield wire


def lists_of_signatures(address: str, limit: int) -> Iterator[Wire]:
    """Define 2,000 custom operations with 1,000 numbers each."""
    out = (TensorUse(SCALAR, TensorStatus.NOT_INIT),)
    for _ in range(2):
        wire = _native(address)
        for number in range(2000):
            numbers = tuple([Scalar("Float", float(number + place)) for place in range(1000)])
            made = sign(CUSTOM, "nothing", (), out, numbers)
            wire.say(Define(number, made))
        yield wire


def signatures(address: str, limit: int) -> Iterator[Wire]:
    """Number 4,096 signatures, and execute 4,096 others, in each of 8 sessions."""
    for session in range(8):
        wire = _native(address)
        for first in range(0, 4096, 256):
            specs = [f32(session + 1, number + 1) for number in range(first, first + 256)]
            sums = [signature("Numeric.Add", spec, spec) for spec in specs]
            products = [signature("Numeric.Mul", spec, spec) for spec in specs]
            wire.say(*(Define(number, made) for number, made in enumerate(sums, first)))
            wire.say(*(Execute(Operation(made, (1, 2, 3))) for made in products))
        yield wire


def fetches_of_peers(address: str, limit: int) -> Iterator[Wire]:
    """Fetch 2,048 tensors that nobody exposes over each of 60 connections for peers."""
    for _ in range(60):
        wire = Wire(address, "transfer")
        wire.send(encode_frame(Hello(VERSIONS)))
        wire.hear()
        for request in range(2048):
            if not wire.send(encode_frame(FetchRequest(request, secrets.token_bytes(32)))):
                break
        yield wire


def queued_graphs(address: str, limit: int) -> Iterator[Wire]:
    """Call a registered graph of Burn 0.22 with 3,000 operations again and again."""
    count = 3000
    steps = []
    for slot in range(count):
        used = [[slot], [[0]], "ReadOnly", "F32"]
        steps.append({"NumericFloat": ["F32", {"Add": [used, used, [[slot + 1], *_NEW]]}]})
    tensors = [[[0], [1]], *([[slot], [slot + 1]] for slot in range(1, count + 1))]
    for _ in range(4):
        wire = Wire(address, "session")
        wire.send(encode_init_0_22(SessionInit(2, secrets.randbits(63), 0, b"")))
        wire.hear()
        for graph in range(120):
            task = {"RegisterAndExecuteGraph": [[0], graph, steps, [tensors, [2], [], []]]}
            wire.send(msgpack.packb([{"Task": task}]))
        yield wire


def nested_frames(address: str, limit: int) -> Iterator[Wire]:
    """Send a frame of lists nested 1,000 deep behind a fetch that waits, in 64 sessions."""
    nested = b"\x92\x20" + b"\x91" * 1000 + b"\xc0"
    frame = encode_batch(0, [encode_task(Drop(())), *[nested] * 59])
    for _ in range(64):
        wire = _native(address)
        wire.say(Fetch(secrets.token_bytes(32), address, 1, SCALAR), Sync(1))
        for _ in range(4):
            wire.send(frame)
        yield wire


def _waiting_burn_sessions(address: str, count: int) -> Iterator[Wire]:
    """Open sessions of Burn 0.22 whose threads wait for a tensor that nobody exposes."""
    host, port = urlsplit(address).hostname, urlsplit(address).port
    for _ in range(count):
        wire = Wire(address, "session")
        wire.send(encode_init_0_22(SessionInit(2, secrets.randbits(63), 0, b"")))
        wire.hear()
        remote = [secrets.token_bytes(32), {"WebSocket": ["ws", host, port]}]
        messages = [
            {"Task": {"RegisterTensorRemote": [[0], remote, [1]]}},
            {"Task": {"SyncBackend": [1, [0]]}},
        ]
        wire.send(msgpack.packb(messages))
        yield wire


def nested_burn_frames(address: str, limit: int) -> Iterator[Wire]:
    """Send frames of 0.5 MiB of lists nested 1,000 deep behind a fetch that waits, by Burn 0.22."""
    frame = b"\xdc" + (500).to_bytes(2, "big") + (b"\x91" * 1000 + b"\xc0") * 500
    for wire in _waiting_burn_sessions(address, 64):
        for _ in range(4):
            wire.send(frame)
        yield wire


def slices_of_burn_calls(address: str, limit: int) -> Iterator[Wire]:
    """Send frames of 12 calls with 4,000 slices each behind a fetch that waits, by Burn 0.22."""
    slices = [[1000 + each, 2000, 1] for each in range(4000)]
    call = {"Task": {"ExecuteGraph": [[0], 7, [[[[0], [1]], [[1], [2]]], [2], [], slices]]}}
    frame = msgpack.packb([call] * 12)
    for wire in _waiting_burn_sessions(address, 64):
        for _ in range(4):
            wire.send(frame)
        yield wire


def nested_messages_of_burn_0_21(address: str, limit: int) -> Iterator[Wire]:
    """Send messages of 60 KB of lists nested 1,000 deep behind a fetch that waits, by Burn 0.21."""
    task = [b"\x91" * 1000 + b"\xc0"] * 60
    message = b"\xdc" + len(task).to_bytes(2, "big") + b"".join(task)
    for _ in range(64):
        requests, responses = _burn(address)
        fetch = Fetch(2**63 + 5, f"{address}/data", 1, None)
        requests.send(encode_tasks([fetch], request_id(0, 0)))
        requests.send(encode_tasks([Sync(1)], request_id(1, 0)))
        for _ in range(16):
            requests.send(message)
        yield requests
        yield responses


def malformed_frames(address: str, limit: int) -> Iterator[Wire]:
    """Send a malformed frame, and do not answer the end of the session, in 64 sessions."""
    nested = b"\x92\x20" + b"\x91" * 1000 + b"\xc0"
    frame = encode_batch(0, [encode_task(Drop(())), *[nested] * 59])
    for _ in range(64):
        wire = _native(address)
        wire.send(frame)
        yield wire


def graphs_of_many_sessions(address: str, limit: int) -> Iterator[Wire]:
    """Register 200 graphs of 60 operations, and run each, in 64 sessions of Burn 0.22."""
    for wire in _waiting_burn_sessions(address, 64):
        for graph in range(200):
            steps = []
            for slot in range(60):
                used = [[slot], [[1 + graph]], "ReadOnly", "F32"]
                made = [[slot + 1], [[1 + graph]], "NotInit", "F32"]
                steps.append({"NumericFloat": ["F32", {"Add": [used, used, made]}]})
            tensors = [[[0], [1]], *([[slot], [slot + 1]] for slot in range(1, 61))]
            task = {"RegisterAndExecuteGraph": [[0], graph, steps, [tensors, [], [], []]]}
            wire.send(msgpack.packb([{"Task": task}]))
        yield wire


def slow_readers_and_nested_frames(address: str, limit: int) -> Iterator[Wire]:
    """Ask for tensors and do not read them, while others send nested frames."""
    readers = slow_readers(address, limit)
    for number, wire in enumerate(nested_burn_frames(address, limit)):
        yield wire
        if number % 8 == 0 and (reader := next(readers, None)) is not None:
            yield reader


def published_views(address: str, limit: int) -> Iterator[Wire]:
    """Publish views from 14 sessions at once, whose memory is copied."""
    size = limit // 16
    spec, view = _floats(size), _floats(size - 4)
    narrow = signature("Base.Slice", spec, ranges=(Slice(1, size // 4, 1),))
    wires = [_native(address) for _ in range(14)]
    for wire in wires:
        wire.say(_full(1, spec), Execute(Operation(narrow, (1, 2))), Drop((1,)), Sync(1))
        wire.hear()
    for number, wire in enumerate(wires):
        wire.say(Publish(2, f"name {number}", 2, view))
    yield from wires


Attack = Callable[[str, int], Iterable[Wire]]

ATTACKS: Final[dict[str, Attack]] = {
    each.__name__: each
    for each in (
        views,
        scattered,
        exposed,
        slow_readers,
        slow_readers_of_copies,
        small_answers,
        unfinished_messages,
        unfinished_burn_messages,
        slow_burn_readers,
        slow_burn_readers_of_whole_messages,
        unfinished_uploads,
        unfinished_frames_of_refused_sessions,
        dropped_uploads,
        queued_frames,
        failures,
        passed_failures,
        tiny_tensors,
        tiny_tensors_of_many_dimensions,
        inputs_of_refused_operations,
        numbers_of_graphs,
        numbered_steps_of_graphs,
        exposed_failures,
        waiting_fetches,
        values_of_registered_graphs,
        lists_of_signatures,
        published_views,
        nested_frames,
        nested_burn_frames,
        slices_of_burn_calls,
        nested_messages_of_burn_0_21,
        malformed_frames,
        graphs_of_many_sessions,
        slow_readers_and_nested_frames,
        queued_graphs,
        signatures,
        fetches_of_peers,
    )
}


def attack(name: str, limit_bytes: int) -> Outcome:
    """Attack a separate server; return its growth and the time of its slowest health check.

    A bystander's session must compute before and after.
    """
    flags = (
        f"--max-session-bytes={limit_bytes * 4 // 5}",
        f"--max-total-bytes={limit_bytes}",
        "--fetch-timeout-seconds=5",
        "--lease-seconds=2",
    )
    with server(*flags, module=UNFORKED) as running:
        base = _base_bytes(running, SIDE if name == queued_frames.__name__ else SMALL_SIDE)
        with Probe(running.port) as probe:
            held = [*ATTACKS[name](running.address, limit_bytes)]
            _wait_until_quiet(running)
            slowest = probe.times()[-1]
        peak = running.peak_bytes
        for wire in held:
            wire.close()
        _compute_soon(running)
    return Outcome(name, limit_bytes, base, peak, slowest)


def _base_bytes(running: RunningServer, side: int) -> int:
    """Return the resident bytes of a server whose sessions have multiplied matrices.

    OpenBLAS keeps memory for the most products that ever ran at once, and the allocator for each
    thread that has used it. So as many sessions multiply at once here as in an attack.
    docs/security.md lists this memory as not counted.
    """
    with contextlib.ExitStack() as stack:
        # Devices with one token share a session, so each has its own token.
        devices = [
            stack.enter_context(br.RemoteDevice(running.address, token=f"base{number}"))
            for number in range(SESSIONS)
        ]
        squares = [br.ones((side, side), device=device) for device in devices]
        for _ in range(BASE_ROUNDS):
            corners = [(square @ square)[0, 0].read() for square in squares]
            assert [float(one.result(QUIET_SECONDS)) for one in corners] == SESSIONS * [side]
        del squares
        for device in devices:
            device.sync()  # the batch that this sends frees the squares
        return running.resident_bytes


def _compute_soon(running: RunningServer) -> None:
    """Compute in another session, at the latest when the attackers' leases have ended.

    Until then, their tensors may fill the limit of all sessions.
    """
    deadline = time.monotonic() + QUIET_SECONDS
    while True:
        try:
            with br.RemoteDevice(running.address) as device:
                assert br.ones((2,), device=device).tolist() == [1, 1]
        except (br.QuotaExceeded, br.HandshakeRefused):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def _wait_until_quiet(running: RunningServer) -> None:
    """Wait until the server has used nearly no processor time for a fifth of a second."""
    deadline = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < deadline:
        before = running.cpu_seconds
        time.sleep(0.2)
        if running.cpu_seconds - before < 0.05:
            return
    raise TimeoutError(f"the server was still busy after {QUIET_SECONDS:g} s")
