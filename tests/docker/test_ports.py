"""The demo looks at its ports before it builds, which takes minutes. These tests need no Docker."""

from __future__ import annotations

import socket

import containers
import pytest


def test_a_port_in_use_is_named_with_its_variable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = str(used.getsockname()[1])
        ports = {"PORT_A": "0", "PORT_B": port, "PORT_C": "0"}
        with pytest.raises(
            containers.Unusable, match=f"port {port} .*; choose another one by PORT_B"
        ):
            containers.check_ports(ports)


def test_ports_that_docker_chooses_are_not_looked_at() -> None:
    containers.check_ports({"PORT_A": "0", "PORT_B": "0", "PORT_C": "0"})
