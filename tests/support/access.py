"""Tokens and certificates for tests of access control."""

from __future__ import annotations

import signal
from datetime import datetime
from pathlib import Path

import trustme

from support.servers import RunningServer

__all__ = ["ALICE", "BOB", "PEERS", "certificate", "reload"]

ALICE = "alice-has-this-token-1"
BOB = "bob-has-this-other-one"
PEERS = "what-servers-show-each-other"


def certificate(
    folder: Path,
    authority: trustme.CA,
    *names: str,
    not_before: datetime | None = None,
    not_after: datetime | None = None,
) -> list[str]:
    """Write a certificate; return the flags of a server that uses it."""
    names = names or ("127.0.0.1", "localhost")
    issued = authority.issue_cert(*names, not_before=not_before, not_after=not_after)
    issued.private_key_pem.write_to_path(folder / "key.pem")
    (folder / "certificate.pem").write_bytes(issued.cert_chain_pems[0].bytes())
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return [
        "--tls-certificate", str(folder / "certificate.pem"), "--tls-key", str(folder / "key.pem")
    ]  # fmt: skip


def reload(running: RunningServer) -> None:
    """Make a server reload its tokens and certificates (SIGHUP)."""
    running.process.send_signal(signal.SIGHUP)
