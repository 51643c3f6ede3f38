"""A client with a known token gets a session, within the limits of that token."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import burn_remote as br
from burn_remote_protocol.dialects.burn_0_21 import encode_init
from support.access import ALICE, BOB, reload
from support.servers import RunningServer, server
from support.waiting import PATIENCE_SECONDS


def test_a_token_opens_a_session(guarded: RunningServer) -> None:
    with br.RemoteDevice(guarded.address, token=ALICE) as device:
        assert br.arange(3, device=device).tolist() == [0, 1, 2]


def test_the_token_may_come_from_the_environment(
    guarded: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BURN_REMOTE_TOKEN", BOB)
    with br.RemoteDevice(guarded.address) as device:
        assert br.arange(3, device=device).tolist() == [0, 1, 2]


def test_white_space_around_a_token_is_ignored(
    guarded: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BURN_REMOTE_TOKEN", f"{ALICE}\r\n")
    with br.RemoteDevice(guarded.address, token=f" {ALICE}\n") as device:
        assert br.arange(3, device=device).tolist() == [0, 1, 2]
        assert br.RemoteDevice(guarded.address) == device


def test_the_refusal_of_a_client_without_a_token_says_what_to_pass(guarded: RunningServer) -> None:
    with pytest.raises(
        br.HandshakeRefused, match=r"^this server requires a token; pass .*token="
    ) as e:
        br.RemoteDevice(guarded.address)
    assert "\n" not in str(e.value)


def test_a_refusal_shows_the_line_of_the_program_alone(guarded: RunningServer) -> None:
    with pytest.raises(br.HandshakeRefused) as caught:
        br.RemoteDevice(guarded.address)
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert len(frames) == 2  # this test, and the one that raises the error again


def test_a_wrong_token_is_refused(guarded: RunningServer) -> None:
    with pytest.raises(br.HandshakeRefused, match="does not know this token"):
        br.RemoteDevice(guarded.address, token="x" * 30)


def test_programs_with_different_tokens_share_no_session(guarded: RunningServer) -> None:
    with (
        br.RemoteDevice(guarded.address, token=ALICE) as alice,
        br.RemoteDevice(guarded.address, token=BOB) as bob,
    ):
        assert alice != bob


def test_refused_clients_use_up_no_sessions(guarded: RunningServer) -> None:
    for _ in range(300):  # more than max_sessions
        with pytest.raises(br.HandshakeRefused, match="token"):
            br.RemoteDevice(guarded.address)
    with br.RemoteDevice(guarded.address, token=ALICE) as device:
        device.sync()


def test_a_server_open_to_the_network_does_not_start_without_tokens() -> None:
    environment = {name: value for name, value in os.environ.items() if "BURN_REMOTE" not in name}
    ended = subprocess.run(
        [sys.executable, "-m", "burn_remote_server", "--host", "0.0.0.0", "--port", "0"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=30,
    )
    assert ended.returncode == 2
    assert "BURN_REMOTE_TOKENS" in ended.stderr
    assert "--token-file" in ended.stderr
    assert ended.stdout == ""


def test_a_server_open_to_the_network_starts_with_tokens() -> None:
    with (
        server("--host", "0.0.0.0", BURN_REMOTE_TOKENS=f"alice:{ALICE}") as running,
        br.RemoteDevice(running.address, token=ALICE) as device,
    ):
        device.sync()


def test_each_token_has_the_limits_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(
        f'alice = "{ALICE}"\n[bob]\ntoken = "{BOB}"\nmax_session_bytes = 1000\nmax_sessions = 1\n'
    )
    with (
        server("--token-file", str(file)) as running,
        br.RemoteDevice(running.address, token=ALICE) as alice,
        br.RemoteDevice(running.address, token=BOB) as bob,
    ):
        assert br.ones((1000,), device=alice).sum().item() == 1000
        with pytest.raises(br.QuotaExceeded, match=r"4,000 would be held, 1,000 are allowed"):
            br.ones((1000,), device=bob).numpy()
        assert br.ones((3,), device=bob).tolist() == [1, 1, 1]
        with pytest.raises(br.HandshakeRefused, match="'bob': 1 are open, 1 are allowed"):
            br.RemoteDevice(running.address, token=BOB, dialect="native")


def test_a_hangup_signal_reloads_the_token_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"alice {ALICE}\n")
    with server("--token-file", str(file)) as running:
        with br.RemoteDevice(running.address, token=ALICE) as device:
            file.write_text(f"bob {BOB}\n")
            reload(running)
            device.sync()  # open sessions stay
            assert admits(running, BOB)
        with pytest.raises(br.HandshakeRefused):
            br.RemoteDevice(running.address, token=ALICE)


def admits(running: RunningServer, token: str) -> bool:
    """Whether a token opens a session, at once or as soon as the server has read its files."""
    for _ in range(1000):
        try:
            br.RemoteDevice(running.address, token=token).close()
        except br.HandshakeRefused:
            continue
        return True
    return False


@pytest.mark.parametrize("route", ["request", "response"])
@pytest.mark.parametrize("place", ["/token/{token}/{route}", "/{route}?token={token}"])
def test_burns_sockets_take_the_token_from_their_address(
    guarded: RunningServer, route: str, place: str
) -> None:
    path = place.format(token=ALICE, route=route)
    with connect(guarded.address + path) as socket_:
        socket_.send(encode_init(7))
        socket_.ping().wait(PATIENCE_SECONDS)
        assert socket_.protocol.close_code is None  # it was let in


@pytest.mark.parametrize("route", ["request", "response"])
@pytest.mark.parametrize("place", ["/{route}", "/token/wrong-wrong-wrong-wrong/{route}"])
def test_burns_sockets_without_a_known_token_are_closed_with_the_reason(
    guarded: RunningServer, route: str, place: str
) -> None:
    with connect(guarded.address + place.format(route=route)) as socket_:
        with pytest.raises(ConnectionClosed) as caught:
            socket_.recv(PATIENCE_SECONDS)
        assert caught.value.rcvd is not None
        assert "token" in caught.value.rcvd.reason


def test_a_native_client_may_have_its_token_in_the_address_too(guarded: RunningServer) -> None:
    with br.RemoteDevice(f"{guarded.address}/token/{ALICE}") as device:
        assert br.arange(3, device=device).tolist() == [0, 1, 2]


def test_a_token_in_an_address_stays_out_of_the_servers_log(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if "BURN_REMOTE" not in name}
    environment["BURN_REMOTE_TOKENS"] = f"alice:{ALICE}"
    command = [sys.executable, "-m", "burn_remote_server", "--port", "0", "--log-level", "debug"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        with br.RemoteDevice(f"{address}/token/{ALICE}") as device:
            device.sync()
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)
    text = (tmp_path / "log").read_text()
    assert "session opened" in text
    assert ALICE not in text


def test_a_refused_token_is_not_explained_by_a_panic_of_burn(guarded: RunningServer) -> None:
    with pytest.raises(br.ConnectionLost, match=r"set BURN_REMOTE_TOKEN$") as caught:
        br.RemoteDevice(guarded.address, dialect="burn-0.21")
    assert caught.value.close_reason.startswith("this server requires a token")
