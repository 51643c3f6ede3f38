"""Network namespaces of this machine whose links have a bounded rate, and servers in them.

The kernel shapes what each namespace sends to the others, so shaping takes no processor time of the
programs that are measured, unlike a relay. What is sent to the client has no bound.
Needs root, and ``ip`` and ``tc`` of iproute2.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["ShapedServer", "shaped_namespaces", "shaped_servers"]

# The private network 10.213.0.0/24. This machine must not use it for anything else.
_NETWORK: Final = "10.213.0"
_CLIENT: Final = f"{_NETWORK}.254"
# A network namespace with a bridge, so that no firewall rule of the machine applies to its frames.
_SWITCH: Final = "burn-switch"
_UNBOUNDED: Final = "100gbit"
# Bytes that may leave at once: two of the largest segments that the kernel passes to a link.
_BURST_BYTES: Final = 2**17


@dataclass(frozen=True, slots=True)
class ShapedServer:
    """The address of a server, and the token of its clients."""

    address: str
    token: str


@contextlib.contextmanager
def shaped_servers(count: int, link_mbit: float) -> Iterator[list[ShapedServer]]:
    """Start servers that send to each other at ``link_mbit`` Mbit/s each.

    Raises ``SystemExit`` if this user may not create network namespaces.
    """
    token = secrets.token_urlsafe(32)
    variables = {"BURN_REMOTE_TOKENS": f"bench:{token}", "BURN_REMOTE_PEER_TOKEN": token[::-1]}
    environment = {**os.environ, **variables}
    with contextlib.ExitStack() as stack:
        yield [
            ShapedServer(stack.enter_context(_server(namespace, host, environment)), token)
            for namespace, host in stack.enter_context(shaped_namespaces(count, link_mbit))
        ]


@contextlib.contextmanager
def shaped_namespaces(count: int, link_mbit: float) -> Iterator[list[tuple[str, str]]]:
    """Make namespaces that send to each other at ``link_mbit`` Mbit/s: their names and addresses.

    Raises ``SystemExit`` if this user may not create network namespaces.
    """
    if os.geteuid() != 0:
        raise SystemExit("--link-mbit creates network namespaces: run it as root")
    with contextlib.ExitStack() as stack:
        stack.enter_context(_namespace(_SWITCH))
        _run(f"ip -n {_SWITCH} link add switch type bridge")
        _run(f"ip -n {_SWITCH} link set switch up")
        _run(f"ip link add burn-client type veth peer name client netns {_SWITCH}")
        stack.callback(_run, "ip link del burn-client")
        _run(f"ip addr add {_CLIENT}/24 dev burn-client")
        _run("ip link set burn-client up")
        _attach("client")
        made = []
        for number in range(1, count + 1):
            namespace = f"burn-server-{number}"
            stack.enter_context(_namespace(namespace))
            _run(f"ip link add port{number} netns {_SWITCH} type veth peer eth0 netns {namespace}")
            _run(f"ip -n {namespace} addr add {_NETWORK}.{number}/24 dev eth0")
            _run(f"ip -n {namespace} link set eth0 up")
            _attach(f"port{number}")
            _shape(namespace, link_mbit)
            made.append((namespace, f"{_NETWORK}.{number}"))
        yield made


def _shape(namespace: str, link_mbit: float) -> None:
    """Bound what a namespace sends, except to the client."""
    tc = f"tc -n {namespace}"
    _run(f"{tc} qdisc add dev eth0 root handle 1: htb default 20")
    for number, rate in ((10, _UNBOUNDED), (20, f"{link_mbit}mbit")):
        _run(
            f"{tc} class add dev eth0 parent 1: classid 1:{number} htb rate {rate} "
            f"burst {_BURST_BYTES} cburst {_BURST_BYTES} quantum 60000"
        )
    _run(
        f"{tc} filter add dev eth0 parent 1: protocol ip u32 match ip dst {_CLIENT}/32 flowid 1:10"
    )


@contextlib.contextmanager
def _namespace(name: str) -> Iterator[None]:
    _run(f"ip netns add {name}")
    try:
        _run(f"ip -n {name} link set lo up")
        yield
    finally:
        _run(f"ip netns del {name}")


def _attach(port: str) -> None:
    _run(f"ip -n {_SWITCH} link set {port} master switch up")


@contextlib.contextmanager
def _server(namespace: str, host: str, environment: dict[str, str]) -> Iterator[str]:
    command = ["ip", "netns", "exec", namespace, sys.executable, "-m", "burn_remote_server"]
    process = subprocess.Popen(
        [
            *command,
            "--host",
            host,
            "--port",
            "0",
            "--peer",
            f"{_NETWORK}.0/24",
            "--log-level",
            "warning",
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None  # started with a pipe
        words = process.stdout.readline().split()
        yield next(word for word in words if word.startswith("ws://"))
    finally:
        process.kill()
        process.communicate()


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True)
