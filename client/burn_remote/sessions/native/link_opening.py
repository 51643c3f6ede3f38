"""The opening of a native session's link: dialing, the handshake, and its refusals."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final

from burn_remote_protocol.dialects.burn_0_22 import is_burn_frame
from burn_remote_protocol.dialects.native import VERSIONS, decode_frame, encode_frame
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ClosedDevice,
    ConnectionLost,
    GarbledBytes,
    HandshakeRefused,
)
from burn_remote_protocol.handshake import accepted
from burn_remote_protocol.links.checksummed_links import CheckedLink, UncheckedFrame
from burn_remote_protocol.links.interface import BlockingLink
from burn_remote_protocol.messages import Closing, Hello, Refused, Resume, Welcome

__all__ = ["Dial", "SpeaksBurn", "open_link", "send_closing"]

# Opens a link within a number of seconds.
Dial = Callable[[float], BlockingLink]

CLIENT_NAME: Final = "burn_remote (Python)"


class SpeaksBurn(HandshakeRefused):
    """The server answered the handshake as those built with Burn 0.22 or later do."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"{address} is a server built with Burn 0.22 or later, not a burn-remote-server; "
            "connect with dialect='burn-0.22', or without dialect="
        )


def open_link(
    dial: Dial,
    token: str | None,
    timeout_seconds: float,
    resume: Resume | None,
    beat: Callable[[], None],
) -> tuple[BlockingLink, Welcome]:
    """Dial, and open a session or resume one; return the link and the server's ``Welcome``.

    ``beat`` is called after each keepalive interval, if the server asks for heartbeats. Raises
    ``ConnectionFailed``, ``ConnectionLost``, ``GarbledBytes``, ``VersionMismatch``,
    ``HandshakeRefused`` or ``SessionLost``.
    """
    deadline = time.monotonic() + timeout_seconds
    link: BlockingLink | None = None
    try:
        link = dial(timeout_seconds)
        if not link.detects_corruption:
            link = CheckedLink(link)
        hello = Hello(VERSIONS, token=token, resume=resume, client=CLIENT_NAME)
        link.send(encode_frame(hello))
        try:
            reply = link.receive(max(0.0, deadline - time.monotonic()))
        except UncheckedFrame as error:
            if is_burn_frame(error.frame):
                raise SpeaksBurn(link.address) from None
            raise _without_hello(link.address, error) from None
        if reply is None:
            raise ConnectionLost(
                f"{link.address} did not answer the handshake within {timeout_seconds:g} seconds"
            )
        if is_burn_frame(reply):
            raise SpeaksBurn(link.address)
        welcome = accepted(decode_frame(reply), VERSIONS)
        if heartbeat := welcome.limits.get("heartbeat_milliseconds"):
            link.keep_alive(heartbeat / 1000, beat)
        return link, welcome
    except BaseException as error:
        if link is not None:
            if resume is None and not isinstance(error, HandshakeRefused):
                # Otherwise, the server would keep the session that it has opened, or opens
                # later when it comes to the ``Hello``, for its lease.
                send_closing(link)
            link.close()
        raise


def _without_hello(address: str, error: UncheckedFrame) -> GarbledBytes:
    """Return the error for a reply without a checksum.

    A server refuses so if no ``Hello`` arrived in time, or if the bit was flipped that announces
    checksums. In both cases, another attempt may succeed.
    """
    try:
        reply = decode_frame(error.frame)
    except BurnRemoteError:
        return error
    if not isinstance(reply, Refused):
        return error
    return GarbledBytes(f"{address} did not receive the handshake intact: {reply.error}")


def send_closing(link: BlockingLink) -> None:
    """Send ``Closing`` if the link is still up, so that the server need not keep the session."""
    with contextlib.suppress(BurnRemoteError):
        link.send(encode_frame(Closing(ClosedDevice("the client closed the device"))))
