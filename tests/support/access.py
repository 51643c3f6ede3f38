"""Tokens and certificates for tests of access control."""

from __future__ import annotations

import signal
from pathlib import Path

import trustme

from support.servers import RunningServer

__all__ = ["ALICE", "BOB", "PEERS", "certificate", "reload"]

ALICE = "alice-has-this-token-1"
BOB = "bob-has-this-other-one"
PEERS = "what-servers-show-each-other"


def certificate(folder: Path, authority: trustme.CA, *names: str) -> list[str]:
    """Write a certificate; return the flags of a server that uses it."""
    issued = authority.issue_cert(*(names or ("127.0.0.1", "localhost")))
    issued.private_key_pem.write_to_path(folder / "key.pem")
    (folder / "certificate.pem").write_bytes(issued.cert_chain_pems[0].bytes())
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return [
        "--tls-certificate", str(folder / "certificate.pem"), "--tls-key", str(folder / "key.pem")
    ]  # fmt: skip


def reload(running: RunningServer) -> None:
    """Make a server reload its tokens and certificates (SIGHUP)."""
    running.process.send_signal(signal.SIGHUP)
