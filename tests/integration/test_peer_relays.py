"""Two real servers and an attacker between them: what it recorded, and a certificate of its own."""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import trustme

import burn_remote as br
from burn_remote_protocol.messages import Expose, Upload
from burn_remote_protocol.tensors import TensorData
from endurance.attacks import Client
from support.access import PEERS, certificate
from support.servers import server
from support.specs import f32
from support.waiting import PATIENCE_SECONDS

SPEC = f32(1000)
HEADERS_END = b"\r\n\r\n"


class Relay:
    """Forwards connections to a port, and records the bytes of both directions of each one."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"ws://127.0.0.1:{self.listening.getsockname()[1]}"
        self.target_port = 0
        self.requests: list[bytearray] = []
        self.responses: list[bytearray] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listening.accept()
                ways = bytearray(), bytearray()
                self.requests.append(ways[0])
                self.responses.append(ways[1])
                threading.Thread(target=self._carry, args=(near, *ways), daemon=True).start()

    def _carry(self, near: socket.socket, request: bytearray, response: bytearray) -> None:
        """Forward one connection in both directions, and close both ends."""
        with (
            near,
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.target_port)) as far,
        ):
            back = threading.Thread(target=_forward, args=(far, near, response), daemon=True)
            back.start()
            _forward(near, far, request)
            back.join()


def _forward(source: socket.socket, target: socket.socket, record: bytearray) -> None:
    with contextlib.suppress(OSError):
        while received := source.recv(2**16):
            record += received
            target.sendall(received)
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def relayed() -> Iterator[Relay]:
    relay = Relay()
    with relay.listening:
        yield relay
        relay.listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts


def replayed(port: int, recorded: bytes) -> bytes:
    """Send recorded bytes to a server; return all that it sends until it closes the connection."""
    said = bytearray()
    request, frames = recorded.split(HEADERS_END, 1)
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as connection:
        connection.sendall(request + HEADERS_END)
        while HEADERS_END not in said:
            said += connection.recv(2**16)
        connection.sendall(frames)
        with contextlib.suppress(ConnectionResetError):
            while received := connection.recv(2**16):
                said += received
    return bytes(said)


def test_the_recorded_proof_and_fetches_of_a_server_give_nothing_to_another() -> None:
    elements = np.random.default_rng(1).random(1000, np.float32)
    transfer = secrets.token_bytes(32)
    with (
        relayed() as relay,
        server("--advertise-address", relay.address, BURN_REMOTE_PEER_TOKEN=PEERS) as source,
        server(BURN_REMOTE_PEER_TOKEN=PEERS) as target,
        br.RemoteDevice(target.address) as device,
    ):
        relay.target_port = source.port
        client = Client(source.address)
        data = TensorData(elements.tobytes(), SPEC.shape, SPEC.dtype)
        client.send(Upload(1, data), Expose(1, SPEC, 2, transfer, 300.0))
        client.sync()

        def fetched() -> bytes:
            handle = device.runners.fetch(transfer, relay.address, SPEC)
            reply = device.runners.read_tensor_async(handle).result(PATIENCE_SECONDS)
            return bytes(reply.bytes)

        assert fetched() == elements.tobytes()
        assert elements.tobytes() in relay.responses[0]
        said = replayed(source.port, bytes(relay.requests[0]))
        assert b"the proof matches none of the tokens of this server" in said
        assert elements.tobytes()[:64] not in said
        assert fetched() == elements.tobytes(), "the replay has used up the transfer"
        client.link.close()


@pytest.mark.parametrize("is_trusted", [True, False], ids=["of-another-name", "of-a-stranger"])
def test_a_relay_with_another_certificate_hears_nothing_of_the_proof(
    is_trusted: bool, tmp_path: Path, authority: trustme.CA
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if is_trusted:
        authority.issue_cert("another-host").configure_cert(context)
    else:
        trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    heard: list[bytes] = []
    failures: list[str] = []

    def listen() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                try:
                    with context.wrap_socket(connection, server_side=True) as encrypted:
                        heard.append(encrypted.recv(100))
                except OSError as error:
                    failures.append(str(error))

    flags = certificate(tmp_path, authority)
    ca = str(tmp_path / "ca.pem")
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        server(*flags, "--peer-ca", ca, BURN_REMOTE_PEER_TOKEN=PEERS) as target,
        br.RemoteDevice(target.address, tls=ca) as device,
    ):
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        address = f"wss://127.0.0.1:{listening.getsockname()[1]}"
        handle = device.runners.fetch(secrets.token_bytes(32), address, SPEC)
        with pytest.raises(br.TransferFailed, match="certificate"):
            device.runners.read_tensor_async(handle).result(PATIENCE_SECONDS)
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_SECONDS)
    assert failures
    assert not [each for each in heard if each]
