"""The default device of tensors created without one."""

from __future__ import annotations

import traceback

import pytest

import burn_remote as br
from support.ports import reserved_port
from support.servers import server


def test_the_default_device_has_the_address_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with server() as running:
        monkeypatch.setenv("BURN_REMOTE_ADDRESS", running.address)
        x = br.ones(2)
        assert x.device == br.default_device() == br.RemoteDevice(running.address)
        x.device.close()


def test_an_unreachable_default_device_gives_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        reserved_port() as port,
        pytest.raises(br.ConnectionFailed, match=r"nothing listens.*device=burn_remote\.Local"),
    ):
        monkeypatch.setenv("BURN_REMOTE_ADDRESS", f"ws://127.0.0.1:{port}")
        br.ones(2)


def test_the_traceback_of_a_missing_server_has_no_frames_of_the_connection() -> None:
    with (
        reserved_port() as port,
        pytest.raises(br.ConnectionFailed, match="nothing listens") as caught,
    ):
        br.RemoteDevice(f"ws://127.0.0.1:{port}")
    printed = "".join(traceback.format_exception(caught.value))
    assert printed.count("Traceback") == 1
    assert "/sessions/" not in printed
    assert "/links/" not in printed
