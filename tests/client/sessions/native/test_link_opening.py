"""A client names the server's reason if its handshake fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from threading import Thread

import pytest
from websockets.sync.server import ServerConnection, serve

import burn_remote as br
from burn_remote_protocol.dialects.native import encode_frame
from burn_remote_protocol.errors import BurnRemoteError, GarbledBytes, ProtocolViolation
from burn_remote_protocol.messages import Refused


@contextlib.contextmanager
def refusing_server(error: BurnRemoteError) -> Iterator[str]:
    """Refuse each connection without waiting for its ``Hello``; yield the server's address."""

    def refuse(connection: ServerConnection) -> None:
        connection.send(encode_frame(Refused(error)))

    with serve(refuse, "127.0.0.1", 0) as running:
        thread = Thread(target=running.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{running.socket.getsockname()[1]}"
        finally:
            running.shutdown()
            thread.join()


def test_a_client_whose_handshake_came_too_late_learns_it() -> None:
    reason = "no Hello arrived within 5 seconds"
    with (
        refusing_server(ProtocolViolation(reason)) as address,
        pytest.raises(GarbledBytes, match=f"{address}.* {reason}"),
    ):
        br.RemoteDevice(address, dialect="native")
