"""Attacks on the event loop: messages of one client that occupy the server for a long time.

Each attack has its own server. A probing process requests ``/healthz`` every 10 ms on a new
connection. The worst latency is the longest time for which the server responded to nobody.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgpack

from burn_remote_protocol.collectives import GroupSpec
from burn_remote_protocol.dialects.burn_0_21 import encode_init, encode_tasks
from burn_remote_protocol.dialects.burn_0_21_responses import encode_data_request
from burn_remote_protocol.dialects.burn_0_22 import SessionInit
from burn_remote_protocol.dialects.burn_0_22 import encode_init as encode_init_0_22
from burn_remote_protocol.dialects.burn_0_22_tasks import encode_task as encode_task_0_22
from burn_remote_protocol.dialects.burn_0_22_tasks import joined
from burn_remote_protocol.dialects.native import (
    VERSIONS,
    chunk_head,
    decode_frame,
    encode_batch,
    encode_frame,
    encode_task,
)
from burn_remote_protocol.dtypes import BOOL, F32, I32
from burn_remote_protocol.errors import BurnRemoteError, ClosedDevice
from burn_remote_protocol.links.addresses import parse_address
from burn_remote_protocol.links.interface import BlockingLink
from burn_remote_protocol.links.websocket import blocking_link
from burn_remote_protocol.messages import (
    Acknowledged,
    BeginUpload,
    Closing,
    Define,
    DefineGraph,
    Drop,
    Execute,
    Expose,
    Fetch,
    FetchRequest,
    Hello,
    JoinGroup,
    Read,
    Reply,
    Resume,
    Sync,
    Task,
    Upload,
    Welcome,
)
from burn_remote_protocol.operations.families.session import CUSTOM
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.operations.table import sign
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorData, TensorSpec, TensorStatus
from endurance.processes import TESTS, Probe
from support.hash_collisions import colliding_tuples
from support.kernels import signature
from support.servers import UNFORKED, server

__all__ = ["LOOP_ATTACKS", "Latency", "attacked"]

T = TypeVar("T")

WAIT_SECONDS: Final = 60.0
LIMITS: Final = (
    "--max-operation-seconds", "1",
    "--max-session-bytes", "1GiB", "--fetch-timeout-seconds", "2",
    "--max-connections", "10000", "--max-connections-per-address", "10000",
)  # fmt: skip
# Larger than any message of these attacks.
MESSAGE_BYTES: Final = 2**30
SPEC: Final = TensorSpec((1,), F32)
USE: Final = TensorUse(SPEC, TensorStatus.READ_ONLY)


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency of ``/healthz`` during an attack, in milliseconds.

    ``turn`` is the processor time of the longest turn of the event loop, in another run.
    """

    worst: float
    median: float
    probes: int
    peak_mebibytes: float
    turn: float


class Client:
    """A native session that sends arbitrary messages."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.link: BlockingLink
        self._welcome = self._connect()
        self.peer_address = self._welcome.peer_address
        self._received = 0
        self._requests = 1_000_000

    def _connect(self, resume: Resume | None = None) -> Welcome:
        self.link = blocking_link.connect(parse_address(self.address + "/session"))
        self.link.send(encode_frame(Hello(VERSIONS, resume=resume)))
        welcome = decode_frame(self.link.receive(WAIT_SECONDS) or b"")
        assert isinstance(welcome, Welcome)
        return welcome

    def resume(self) -> None:
        """Resume the session over another connection, as if no frame had arrived."""
        self._connect(Resume(self._welcome.session, self._welcome.secret, 0))

    def receive(self) -> None:
        """Receive the next session frame and never acknowledge it."""
        while True:
            frame = self.link.receive(WAIT_SECONDS)
            assert frame is not None, "the server does not answer"
            if not isinstance(decode_frame(frame), Acknowledged):
                return

    def send(self, *tasks: Task | list[int], encoded: tuple[bytes, ...] = ()) -> None:
        """Send a batch of tasks; a list invokes a signature by its number."""
        wire = [
            msgpack.packb(task) if isinstance(task, list) else encode_task(task) for task in tasks
        ]
        self.link.send(encode_batch(self._received, [*wire, *encoded]))

    def sync(self) -> None:
        """Wait until everything has been executed, or the session has ended."""
        self._requests += 1
        try:
            self.send(Sync(self._requests))
            while True:
                frame = self.link.receive(WAIT_SECONDS)
                assert frame is not None, "the server does not answer"
                message = decode_frame(frame)
                if not isinstance(message, Acknowledged):
                    self._received += 1
                if isinstance(message, Reply) and message.request == self._requests:
                    return
        except BurnRemoteError:
            pass  # the server ended the session because of the attack

    def run(self, made: Signature, times: int = 1) -> None:
        """Run an operation on zeros."""
        for number, use in enumerate(made.input_uses):
            self.send(Define(0, signature("Base.Zeros", out=use.spec)), [0, number])
        self.send(Define(1, made))
        tensors = [1, *range(len(made.input_uses) + made.output_count)]
        self.send(*[tensors] * times)


# 4,000 lists of one element, as MessagePack.
_LISTS: Final = b"\xdd" + (4000).to_bytes(4, "big") + b"\x91\xc0" * 4000


def _from_threads(items: Iterable[T], call: Callable[[T], object]) -> None:
    """Call ``call(item)`` for all items at once."""
    chosen = [*items]
    with ThreadPoolExecutor(len(chosen)) as threads:
        for _ in threads.map(call, chosen):
            pass


Attack = Callable[[Client], Iterator[None]]


def _ctc(client: Client) -> Iterator[None]:
    """CtcLoss of 6,000 steps and labels"""
    yield
    lengths = TensorSpec((1,), I32)
    client.run(
        signature(
            "Module.CtcLoss", TensorSpec((6000, 1, 2), F32), TensorSpec((1, 6000), I32), lengths,
            lengths, blank=1,
        )
    )  # fmt: skip


def _transposed(client: Client) -> Iterator[None]:
    """five transposed convolutions of 30,000 taps"""
    yield
    client.run(
        signature(
            "Module.ConvTranspose1d", TensorSpec((1, 1, 1), F32), TensorSpec((1, 1, 30_000), F32),
            None, stride=(1,), padding=(0,), padding_out=(0,), dilation=(1,), groups=1,
        ),
        5,
    )  # fmt: skip


def _adaptive(client: Client) -> Iterator[None]:
    """five adaptive poolings of 3 to 90,000 elements"""
    yield
    client.run(
        signature("Module.AdaptiveAvgPool1d", TensorSpec((1, 1, 3), F32), output_size=90_000), 5
    )


def _bicubic(client: Client) -> Iterator[None]:
    """a bicubic interpolation to 8 MB"""
    yield
    client.run(
        signature(
            "Module.Interpolate", TensorSpec((1, 1, 2, 2), F32), output_size=(1, 2_000_000),
            mode="Bicubic", align_corners=False,
        )
    )  # fmt: skip


def _many_tensors(client: Client, count: int = 900_000) -> None:
    client.send(Define(0, signature("Base.Zeros", out=SPEC)))
    for first in range(0, count, 4000):
        client.send(*[[0, tensor] for tensor in range(first, first + 4000)])
    client.sync()


def _close(client: Client) -> Iterator[None]:
    """closing a session of 900,000 tensors"""
    _many_tensors(client)
    yield
    client.link.close()


def _drop(client: Client) -> Iterator[None]:
    """dropping 900,000 tensors in frames of 0.4 MiB"""
    _many_tensors(client)
    yield
    for first in range(0, 900_000, 40_000):
        client.send(*[Drop(tuple(range(n, n + 4000))) for n in range(first, first + 40_000, 4000)])


def _frames(client: Client) -> Iterator[None]:
    """64 frames of 0.5 MiB, lists of one element"""
    yield
    for _ in range(64):
        client.link.send(encode_batch(0, [encode_task(Drop(())), *[_LISTS] * 60]))


def _defines(client: Client) -> Iterator[None]:
    """40,000 definitions"""
    yield
    made = [encode_task(Define(n, signature("Base.Zeros", out=SPEC))) for n in range(2000)]
    for _ in range(20):
        client.send(encoded=tuple(made))


def _fetches(client: Client) -> Iterator[None]:
    """16,000 fetches of one id that time out together"""
    yield
    wanted = secrets.token_bytes(32)
    for first in range(0, 16_000, 2000):
        client.send(
            *[Fetch(wanted, client.peer_address, n, SPEC) for n in range(first, first + 2000)]
        )


def _fetches_closed(client: Client) -> Iterator[None]:
    """closing a session with 16,000 fetches under way"""
    yield from _fetches(client)
    client.send(Drop(()))
    time.sleep(1.0)  # part of the attack: fetches have begun and not yet timed out
    client.link.close()


def _exposes(client: Client) -> Iterator[None]:
    """closing a session with 16,000 exposed tensors"""
    client.send(Define(0, signature("Base.Zeros", out=SPEC)), [0, 1])
    for _ in range(8):
        client.send(*[Expose(1, SPEC, 1, secrets.token_bytes(32), 300.0) for _ in range(2000)])
    client.sync()
    yield
    client.link.close()


def _bools(client: Client) -> Iterator[None]:
    """uploading 200 MiB of bools"""
    yield
    size = 200 * 2**20
    client.send(BeginUpload(1, TensorSpec((size,), BOOL), size))
    piece = memoryview(bytes(512 * 1024))
    for offset in range(0, size, len(piece)):
        client.link.send_parts(chunk_head(1, offset), piece)


def _dead_peer(client: Client) -> Iterator[None]:
    """16,000 fetches from a peer that refuses connections"""
    yield
    with socket.socket() as listener:  # bound, and not listening
        listener.bind(("127.0.0.1", 0))
        address = f"ws://127.0.0.1:{listener.getsockname()[1]}"
        for first in range(0, 16_000, 2000):
            fetches = [
                Fetch(secrets.token_bytes(32), address, n, SPEC) for n in range(first, first + 2000)
            ]
            client.send(*fetches)
        client.sync()


def _reads(client: Client) -> Iterator[None]:
    """65,000 reads of 1 KiB, not acknowledged"""
    yield
    spec = TensorSpec((256,), F32)
    client.send(Define(0, signature("Base.Zeros", out=spec)), [0, 1])
    for first in range(0, 65_000, 1000):
        client.send(*[Read(n, 1, spec) for n in range(first, first + 1000)])
        for _ in range(1000):
            client.receive()


def _replay(client: Client) -> Iterator[None]:
    """resuming a session with 65,000 frames to send again"""
    for _ in _reads(client):
        pass
    yield
    client.resume()
    for _ in range(65_000):
        client.receive()


def _tiny(client: Client) -> Iterator[None]:
    """300,000 frames without work"""
    yield
    frame = encode_batch(0, [encode_task(Drop(()))])
    for _ in range(300):
        client.link.send_together([frame] * 1000)


def _failures(client: Client) -> Iterator[None]:
    """100,000 operations that fail"""
    yield
    client.send(Define(0, signature("Base.Reshape", SPEC, out=TensorSpec((1, 1), F32))))
    for _ in range(100):
        client.send(*[[0, 7, 8]] * 1000)
        client.sync()


def _connections(client: Client) -> Iterator[None]:
    """2,000 connections at once, in three rounds"""
    yield
    target = parse_address(client.address)
    request = (
        "GET /session HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    for _ in range(3):
        with contextlib.ExitStack() as opened:
            for _ in range(2000):
                each = opened.enter_context(socket.socket())
                each.setblocking(False)
                each.connect_ex((target.host, target.port))
                with contextlib.suppress(OSError):
                    each.send(request.encode())


def _tiny_frames(client: Client, *frames: bytes) -> None:
    """Send a million frames over each of ten connections that are not admitted."""
    target = parse_address(client.address)
    request = (
        f"GET /session HTTP/1.1\r\nHost: x:{target.port}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        "Sec-WebSocket-Version: 13\r\n\r\n"
    )
    first, each = frames

    def send(_: object) -> None:
        with (
            socket.create_connection((target.host, target.port), WAIT_SECONDS) as connection,
            contextlib.suppress(OSError),  # the server closes a connection that sends no Hello
        ):
            connection.sendall(request.encode() + first)
            for _ in range(25):
                connection.sendall(each * 40_000)

    _from_threads(range(10), send)


def _pings(client: Client) -> Iterator[None]:
    """1,000,000 pings over each of ten connections that are not admitted"""
    yield
    _tiny_frames(client, b"", b"\x89\x80" + bytes(4))


def _fragments(client: Client) -> Iterator[None]:
    """1,000,000 empty fragments over each of ten connections that are not admitted"""
    yield
    _tiny_frames(client, b"\x02\x80" + bytes(4), b"\x00\x80" + bytes(4))


def _metrics(client: Client) -> Iterator[None]:
    """100 requests of /metrics, with 200 sessions"""
    others = [Client(client.address) for _ in range(200)]
    yield
    target = parse_address(client.address)
    for _ in range(100):
        with urllib.request.urlopen(f"http://{target.host}:{target.port}/metrics", timeout=60):
            pass
    for other in others:
        other.link.close()


def _many_large_frames(client: Client) -> Iterator[None]:
    """32 frames of 0.5 MiB, lists of one element, from each of 8 sessions"""
    others = [Client(client.address) for _ in range(8)]
    yield
    frame = encode_batch(0, [encode_task(Drop(())), *[_LISTS] * 60])

    def send(other: Client) -> None:
        for _ in range(32):
            other.link.send(frame)

    _from_threads(others, send)
    for other in others:
        other.sync()
        other.link.close()


def _frames_of_many_sessions(client: Client) -> Iterator[None]:
    """40 frames of 60 KB, lists nested 1,000 deep, from each of 64 sessions"""
    others = [Client(client.address) for _ in range(64)]
    yield
    nested = b"\x92\x20" + b"\x91" * 1000 + b"\xc0"
    frame = encode_batch(0, [encode_task(Drop(())), *[nested] * 59])

    def send(other: Client) -> None:
        with contextlib.suppress(BurnRemoteError):  # the server ends the session
            for _ in range(40):
                other.link.send(frame)

    _from_threads(others, send)
    for other in others:
        other.sync()
        other.link.close()


def _large_shapes(client: Client) -> Iterator[None]:
    """100 frames of reads with shapes of 4,000 large dimensions"""
    yield
    shape = b"\xdc" + (4000).to_bytes(2, "big") + (b"\xcf" + b"\x7f" * 8) * 4000
    read = encode_task(Read(1, 1, SPEC))
    assert read.count(b"\x91\x01") == 1  # the list of the shape
    task = read.replace(b"\x91\x01", shape)
    for _ in range(100):
        client.send(encoded=(task,) * 14)


def _nested(client: Client) -> Iterator[None]:
    """64 frames of 0.5 MiB, lists nested 1,000 deep"""
    yield
    task = b"\x92\x20" + b"\x91" * 1000 + b"\xc0"
    for _ in range(64):
        client.send(encoded=(task,) * 500)


def _strings(client: Client) -> Iterator[None]:
    """64 frames of 0.5 MiB, invocations of strings of 200 KB"""
    yield
    text = "\N{SNOWMAN}" * 60_000
    for _ in range(64):
        client.send(encoded=(msgpack.packb([0, text, text]),))


def _hashes(client: Client) -> Iterator[None]:
    """a frame of 0.5 MiB, 4,000 tasks that begin with tuples of equal hashes"""
    yield
    tasks = [msgpack.packb([each]) for each in colliding_tuples(4000, (0,) * 100)]
    client.send(encoded=tuple(tasks))


def _custom(client: Client) -> Iterator[None]:
    """40,000 definitions of different custom operations"""
    yield
    for first in range(0, 40_000, 1000):
        made = [
            encode_task(Define(n % 4096, sign(CUSTOM, f"operation {n}", (USE,), (USE,))))
            for n in range(first, first + 1000)
        ]
        client.send(encoded=tuple(made))


def _sessions(client: Client) -> Iterator[None]:
    """1,000 sessions, opened and closed by 8 threads"""
    yield

    def open_and_close(_: object) -> None:
        for _ in range(125):
            other = Client(client.address)
            other.link.send(encode_frame(Closing(ClosedDevice("closed"))))
            other.link.close()

    _from_threads(range(8), open_and_close)


def _peer_requests(client: Client) -> Iterator[None]:
    """40,000 fetches by a stranger at the port for peers"""
    yield
    link = blocking_link.connect(parse_address(client.address + "/transfer"))
    link.send(encode_frame(Hello(VERSIONS)))
    assert link.receive(WAIT_SECONDS) is not None
    with contextlib.suppress(BurnRemoteError):
        for first in range(0, 40_000, 1000):
            requests = range(first, first + 1000)
            link.send_together(
                [encode_frame(FetchRequest(n, secrets.token_bytes(32))) for n in requests]
            )
    link.close()


def _peer_handshakes(client: Client) -> Iterator[None]:
    """2,000 handshakes at the port for peers, by 8 threads"""
    yield

    def shake(_: object) -> None:
        for _ in range(250):
            link = blocking_link.connect(parse_address(client.address + "/transfer"))
            link.send(encode_frame(Hello(VERSIONS)))
            link.receive(WAIT_SECONDS)
            link.close()

    _from_threads(range(8), shake)


def _burn_requests(client: Client) -> Iterator[None]:
    """100,000 requests by a stranger at the port for peers, in Burn's dialect"""
    yield
    link = blocking_link.connect(parse_address(client.address + "/data"))
    with contextlib.suppress(BurnRemoteError):
        for _ in range(100):
            link.send_together(
                [encode_data_request(secrets.randbits(63) | 2**62) for _ in range(1000)]
            )
    link.close()


def _burn_reads(client: Client) -> Iterator[None]:
    """60,000 reads of unknown tensors in Burn's dialect"""
    links = _burn_session(client.address)
    yield
    for first in range(1000, 61_000, 1000):
        links[0].send_together(
            [encode_tasks([Read(n, n, SPEC)], n) for n in range(first, first + 1000)]
        )
        for _ in range(1000):
            assert links[1].receive(WAIT_SECONDS) is not None
    _burn_sync(links)


def _burn_nested(client: Client) -> Iterator[None]:
    """64 messages of 0.5 MiB, lists nested 1,000 deep, in Burn's dialect"""
    links = _burn_session(client.address)
    yield
    frame = b"\xdc" + (500).to_bytes(2, "big") + (b"\x91" * 1000 + b"\xc0") * 500
    links[0].send_together([frame] * 64)
    _burn_sync(links)


def _many_burn_operations(client: Client) -> Iterator[None]:
    """4,000 different operations of each of 8 sessions of Burn's dialect"""
    others = [_burn_session(client.address, 100 + n) for n in range(8)]
    frames = [
        [
            encode_tasks([Execute(Operation(signature("Base.Zeros", out=made), (5,)))], n)
            for n in range(1, 4001)
            for made in [TensorSpec((number + 2, n), F32)]
        ]
        for number in range(8)
    ]
    yield

    def send(number: int) -> None:
        others[number][0].send_together(frames[number])
        _burn_sync(others[number])

    _from_threads(range(8), send)


def _burn_lists(client: Client) -> Iterator[None]:
    """64 messages of 0.5 MiB and one of 30 MiB, lists of one element, in Burn's dialect"""
    links = _burn_session(client.address)
    yield
    links[0].send_together([b"\xdc" + (60).to_bytes(2, "big") + _LISTS * 60] * 64)
    links[0].send(b"\xdc" + (4000).to_bytes(2, "big") + _LISTS * 4000)
    _burn_sync(links)


def _burn_operations(client: Client) -> Iterator[None]:
    """40,000 different operations in Burn's dialect"""
    links = _burn_session(client.address)
    yield
    for first in range(1, 40_001, 1000):
        links[0].send_together(
            [
                encode_tasks([Execute(Operation(made, (5,)))], n)
                for n in range(first, first + 1000)
                for made in [signature("Base.Zeros", out=TensorSpec((1, n), F32))]
            ]
        )
    _burn_sync(links)


def _burn_upload(client: Client) -> Iterator[None]:
    """uploading 128 MiB in one message of Burn's dialect"""
    links = _burn_session(client.address)
    data = TensorData(bytes(2**27), (2**27,), BOOL)
    frame = encode_tasks([Upload(1, data)], 5)
    yield
    links[0].send(frame)
    _burn_sync(links)


def _burn_read(client: Client) -> Iterator[None]:
    """reading 128 MiB twice in one message of Burn's dialect, of which one is transposed"""
    links = _burn_session(client.address)
    spec = TensorSpec((2**12, 2**13), F32)
    links[0].send(encode_tasks([Execute(Operation(signature("Base.Ones", out=spec), (5,)))], 1))
    turned = signature("Base.SwapDims", spec, dim1=0, dim2=1)
    links[0].send(encode_tasks([Execute(Operation(turned, (5, 6)))], 2))
    yield
    for request, (tensor, use) in enumerate([(5, spec), (6, turned.outputs[0])], 3):
        links[0].send(encode_tasks([Read(request, tensor, use)], request))
        assert links[1].receive(WAIT_SECONDS) is not None
    _burn_sync(links)


def _burn_0_22_upload(client: Client) -> Iterator[None]:
    """uploading 128 MiB in one message of Burn 0.22"""
    link = blocking_link.connect(parse_address(client.address + "/session"))
    link.send(encode_init_0_22(SessionInit(2, secrets.randbits(63), 0, b"")))
    assert link.receive(WAIT_SECONDS) is not None
    data = TensorData(bytes(2**27), (2**25,), F32)
    uploads, syncs = (
        [*joined([encode_task_0_22([task], "")])] for task in (Upload(1, data), Sync(9))
    )
    yield
    link.send_together([*uploads, *syncs])
    assert link.receive(WAIT_SECONDS) is not None
    link.close()


def _native_reads(client: Client) -> Iterator[None]:
    """reading 256 MiB in the native dialect, half of it transposed"""
    spec = TensorSpec((2**12, 2**13), F32)
    client.send(Define(0, signature("Base.Ones", out=spec)), [0, 1])
    turned = signature("Base.SwapDims", spec, dim1=0, dim2=1)
    client.send(Define(1, turned), [1, 1, 2])
    client.sync()
    yield
    client.send(Read(1, 1, spec), Read(2, 2, turned.outputs[0]))
    client.sync()


def _burn_session(address: str, identifier: int = 7) -> tuple[BlockingLink, BlockingLink]:
    target = [parse_address(address + route) for route in ("/request", "/response")]
    requests, responses = (
        blocking_link.connect(each, max_message_bytes=MESSAGE_BYTES) for each in target
    )
    for each in (requests, responses):
        each.send(encode_init(identifier))
    return requests, responses


def _burn_sync(links: tuple[BlockingLink, BlockingLink]) -> None:
    links[0].send(encode_tasks([Sync(99)], 99))
    assert links[1].receive(WAIT_SECONDS) is not None, "the server does not answer"
    for each in links:
        each.close()


def _define_graphs(client: Client, outputs: int = 1) -> None:
    """Define 64 graphs of 4,000 steps that add two tensors."""
    client.send(Define(0, signature("Numeric.Add", SPEC, SPEC)))
    client.send(Define(1, signature("Base.Zeros", out=SPEC)), [1, 0])
    for number in range(64):
        steps = tuple((0, max(0, slot - number), slot) for slot in range(4000))
        client.send(DefineGraph(4096 + number, 1, steps, (*range(4001 - outputs, 4001),)))
    client.sync()


def _graphs(client: Client) -> Iterator[None]:
    """64 graphs of 4,000 steps, defined twice"""
    yield
    for _ in range(2):
        _define_graphs(client)


def _graphs_closed(client: Client) -> Iterator[None]:
    """closing a session of 64 graphs of 4,000 steps"""
    _define_graphs(client)
    yield
    client.link.close()


def _graphs_called(client: Client) -> Iterator[None]:
    """100 calls of graphs of 4,000 outputs, half of them on a tensor that does not exist"""
    _define_graphs(client, outputs=4000)
    yield
    for call in range(100):
        missing = 2**40
        client.send([4096 + call % 64, 0 if call % 2 else missing, 10 + 4000 * call])
    client.sync()


def _members(client: Client) -> Iterator[None]:
    """3,000 joins of one group, whose previous member accepts connections and says nothing"""
    yield
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as silent:
        addresses = (client.address, f"ws://127.0.0.1:{silent.getsockname()[1]}")
        for _ in range(6):
            specs = [GroupSpec(secrets.token_bytes(32), 0, addresses, 86_400.0) for _ in range(500)]
            client.send(*[JoinGroup(0, spec) for spec in specs])
        client.sync()


def _nothing(client: Client) -> Iterator[None]:
    """nothing"""
    yield
    time.sleep(2.0)


LOOP_ATTACKS: Final[tuple[Attack, ...]] = (
    _nothing, _ctc, _transposed, _adaptive, _bicubic, _close, _drop, _frames, _defines, _fetches,
    _fetches_closed, _dead_peer, _exposes, _bools, _reads, _replay, _tiny, _failures, _connections,
    _metrics, _many_large_frames, _frames_of_many_sessions, _large_shapes, _nested, _strings,
    _hashes, _custom, _sessions,
    _peer_requests, _peer_handshakes, _burn_requests, _burn_lists, _burn_operations, _burn_upload,
    _burn_0_22_upload, _burn_read, _native_reads,
    _burn_reads, _burn_nested, _many_burn_operations, _pings, _fragments, _graphs, _graphs_closed,
    _graphs_called, _members,
)  # fmt: skip


def attacked(attack: Attack) -> Latency:
    """Run one attack against a server of its own."""
    with server(*LIMITS, module=UNFORKED) as running:
        client = Client(running.address)
        steps = attack(client)
        next(steps)
        with Probe(running.port) as probe:
            for _ in steps:
                pass
            client.sync()
            time.sleep(2.5)  # for work after the last reply, and for fetches that time out
            times = probe.times()
        client.link.close()
        peak = running.peak_bytes / 2**20
    return Latency(times[-1], times[len(times) // 2], len(times), peak, _longest_turn(attack))


def _longest_turn(attack: Attack) -> float:
    """Run one attack against a server that measures itself; return its longest turn."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report"
        variables = {"MEASURED_SERVER_REPORT": str(report), "PYTHONPATH": str(TESTS)}
        with server(*LIMITS, module="endurance.measured_server", **variables) as running:
            time.sleep(0.5)  # measurements begin only when the server has started
            client = Client(running.address)
            for _ in attack(client):
                pass
            client.sync()
            time.sleep(2.5)
            client.link.close()
            running.stop()
        return float(json.loads(report.read_text())["turn"])
