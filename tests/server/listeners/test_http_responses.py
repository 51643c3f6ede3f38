"""Responses to plain HTTP requests on the WebSocket port."""

from __future__ import annotations

import pytest

from burn_remote_server.listeners.http_responses import ServerState, refuse, respond

READY = ServerState(exposition=lambda: b"metrics\n")


@pytest.mark.parametrize("path", ["/healthz", "/healthz/", "/healthz?from=kubernetes"])
def test_a_running_server_is_healthy(path: str) -> None:
    assert respond(path, READY)[::2] == (200, b"ok\n")


def test_a_draining_server_is_healthy_and_not_ready() -> None:
    draining = ServerState(draining=True)
    assert respond("/healthz", draining)[0] == 200
    assert respond("/readyz", READY)[::2] == (200, b"ready\n")
    assert respond("/readyz", draining)[::2] == (503, b"draining\n")


def test_a_lost_device_makes_a_server_unready_and_the_last_one_unhealthy() -> None:
    one = ServerState(failures=[None, "GPU 1 is lost"])
    assert respond("/readyz", one)[::2] == (503, b"GPU 1 is lost\n")
    assert respond("/healthz", one)[0] == 200
    both = ServerState(failures=["GPU 0 is lost", "GPU 1 is lost"])
    assert respond("/healthz", both)[::2] == (503, b"GPU 0 is lost\nGPU 1 is lost\n")
    assert respond("/readyz", ServerState(failures=[None, None]))[0] == 200


def test_operations_that_do_not_return_degrade_a_server() -> None:
    stuck = ServerState(failures=[None], stuck_operations=2)
    assert respond("/healthz", stuck)[::2] == (200, b"degraded: 2 operations do not return\n")
    assert respond("/readyz", stuck)[0] == 200


def test_metrics_come_with_their_own_content_type() -> None:
    status, headers, body = respond("/metrics", READY)
    assert (status, body) == (200, b"metrics\n")
    assert headers["Content-Type"].startswith("text/plain; version=")


def test_metrics_can_be_turned_off() -> None:
    assert respond("/metrics", ServerState())[0] == 404


@pytest.mark.parametrize(("path", "is_route"), [("/", False), ("", False), ("/1/session", True)])
def test_a_browser_gets_an_explanation_of_the_port(path: str, is_route: bool) -> None:
    status, headers, body = respond(path, READY, is_route=is_route)
    assert status == 426
    assert headers["Upgrade"] == "websocket"
    assert b"burn-remote-server" in body
    assert b"/healthz" in body


def test_a_wrong_path_is_named() -> None:
    status, _, body = respond("/sesion", READY)
    assert status == 404
    assert body.startswith(b"There is nothing at '/sesion'.")


def test_a_very_long_path_is_truncated_in_the_response() -> None:
    assert len(respond("/" + "x" * 100_000, READY)[2]) < 1000


def test_a_connection_over_the_limit_is_refused_with_the_reason() -> None:
    assert refuse({}, "512 connections from here", 0, 1) == (
        429,
        {"Content-Type": "text/plain; charset=utf-8"},
        b"512 connections from here\n",
    )


def test_a_web_page_may_not_connect() -> None:
    answer = refuse({"Origin": "https://example.org"}, "", 0, 1)
    assert answer is not None
    assert answer[0] == 403


def test_a_program_may_connect() -> None:
    assert refuse({"User-Agent": "Python"}, "", 1, 2) is None


@pytest.mark.parametrize(("devices", "which"), [(1, b"only /0"), (3, b"/0 to /2")])
def test_an_unknown_device_is_refused_with_the_known_ones(devices: int, which: bytes) -> None:
    answer = refuse({}, "", 7, devices)
    assert answer is not None
    assert answer[0] == 421
    assert answer[2] == b"there is no device /7 here; there is " + which + b"\n"
