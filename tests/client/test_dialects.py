"""Detection of a server's dialect."""

from __future__ import annotations

import pytest

import burn_remote as br
from support.burn_end import burn_end
from support.faulty_network import Fault, faulty_network
from support.servers import server


def test_a_server_without_a_native_route_gets_the_burn_dialect() -> None:
    with burn_end() as end:
        device = end.admit(lambda: br.RemoteDevice(end.address))
        assert device.info == {"dialect": "burn-0.21"}
        assert end.refused == ["/session", "/session"]
        device.close(timeout_seconds=0)


def test_a_flipped_bit_in_the_path_does_not_select_the_dialect_without_checksums() -> None:
    path_byte = len("GET /s")
    with (
        server() as running,
        faulty_network(running.port, [Fault("flip", path_byte)]) as network,
        br.RemoteDevice(network.address) as device,
    ):
        assert "dialect" not in device.info
        assert br.ones((3,), device=device).tolist() == [1, 1, 1]
        assert network.faults["flip"] == 1


def test_a_given_dialect_is_not_detected() -> None:
    with burn_end() as end:
        end.admit(lambda: br.RemoteDevice(end.address, dialect="burn-0.21")).close(
            timeout_seconds=0
        )
        assert end.refused == []
        with pytest.raises(br.ConnectionFailed, match="404"):
            br.RemoteDevice(end.address, dialect="native")


@pytest.mark.parametrize("status", [403, 500, 503])
def test_a_server_error_is_not_taken_for_the_burn_dialect(status: int) -> None:
    with burn_end(refuse_with=status) as end:
        with pytest.raises(br.ConnectionFailed, match=str(status)):
            br.RemoteDevice(end.address)
        assert end.sockets == {}


def test_a_device_behind_a_path_keeps_its_path() -> None:
    with burn_end() as end, pytest.raises(br.ConnectionFailed, match="404"):
        br.RemoteDevice(f"{end.address}/1")
    # The last attempt is Burn 0.22's, whose servers have no paths.
    assert end.refused == ["/1/session", "/1/session", "/1/request", "/session"]


def test_an_unknown_dialect_is_refused_with_the_known_ones() -> None:
    with pytest.raises(br.UsageError, match=r"native.*burn-0.21.*klingon"):
        br.RemoteDevice("ws://127.0.0.1:9", dialect="klingon")
