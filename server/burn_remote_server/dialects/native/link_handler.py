"""The source's end of a connection that is a link between two members of a group."""

from __future__ import annotations

import asyncio

from burn_remote_protocol.dialects.native import decode_frame, encode_frame
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionLost,
    HandshakeRefused,
    ProtocolViolation,
)
from burn_remote_protocol.links.checksummed_links import AnyAsyncLink, frame_sender
from burn_remote_protocol.messages import Acknowledged, GroupBroken, JoinLink, LinkJoined
from burn_remote_protocol.peer_proofs import FetchSigner
from burn_remote_server.collectives.member import Member
from burn_remote_server.collectives.peer_links import PeerOutgoing, accepts_join
from burn_remote_server.dialects.native.handshake import name_of
from burn_remote_server.hosting.host import Host
from burn_remote_server.transfers.throughput_watchdog import receive_within

__all__ = ["serve_link"]


async def serve_link(
    link: AnyAsyncLink, host: Host, message: JoinLink, signer: FetchSigner | None
) -> None:
    """Serve a link of a group until it ends.

    Raises ``HandshakeRefused`` if no session of this process joins as the link's member in time.
    """
    if not accepts_join(message, signer):
        raise ProtocolViolation("the message to join a link has an invalid signature")
    try:
        seconds = host.settings.fetch_timeout_seconds
        member, proof = await host.groups.source(message.link, seconds)
    except TimeoutError:
        raise HandshakeRefused(
            "no session of this server joined a group with this link in time"
        ) from None
    await link.send(encode_frame(LinkJoined(proof)))
    sender = await frame_sender(link, member.while_sending)
    outgoing = PeerOutgoing(sender)
    if not member.attach(outgoing):
        await asyncio.to_thread(_send_final_message, outgoing, member)
        return
    listening = asyncio.ensure_future(_listen_until_lost(link, member))
    leaving = asyncio.ensure_future(_leave(host, member))
    try:
        await asyncio.wait({listening, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (listening, leaving):
            task.cancel()
        await asyncio.gather(listening, leaving, return_exceptions=True)


def _send_final_message(outgoing: PeerOutgoing, member: Member) -> None:
    """Tell the next member why this one has left the group, and end the link."""
    try:
        if (final_message := member.final_message) is not None:
            outgoing.send(final_message)
    except ConnectionLost:
        pass
    finally:
        outgoing.close()


async def _leave(host: Host, member: Member) -> None:
    """Wait until the server stops and the member has left the group."""
    await host.sessions_ended.wait()
    await asyncio.to_thread(member.join, member.spec.bound_seconds)


async def _listen_until_lost(link: AnyAsyncLink, member: Member) -> None:
    try:
        await _listen(link, member)
    except TimeoutError:
        member.next_lost(f"nothing arrived from it for {member.spec.bound_seconds:g} seconds")
    except BurnRemoteError as error:
        member.next_lost(str(error))


async def _listen(link: AnyAsyncLink, member: Member) -> None:
    """Pass on the messages of the next member. Raises ``TimeoutError`` if it is silent."""
    while True:
        message = decode_frame(await receive_within(link, member.spec.bound_seconds))
        if isinstance(message, GroupBroken):
            member.receive_from_next(message)
        elif not isinstance(message, Acknowledged):
            raise ProtocolViolation(f"the next member must not send {name_of(message)}")
