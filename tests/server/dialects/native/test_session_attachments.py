"""Each native session is served by its newest connection, or waits for one until its lease ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burn_remote_protocol.dialects.native import decode_frame
from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation, SessionLost
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.messages import Reply, Resume
from burn_remote_protocol.session_states import ACKNOWLEDGE_EVERY
from burn_remote_server.access.admission import Grant
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.dialects.native import session_attachments as module
from burn_remote_server.dialects.native.frame_writer import FrameWriter
from burn_remote_server.dialects.native.session_attachments import Attachment, Attachments
from burn_remote_server.execution.native_outbox import NativeOutbox
from burn_remote_server.hosting.host import NATIVE_TRANSFERS, Host
from burn_remote_server.settings.server_settings import Settings
from support.scripted import ScriptedLink
from support.waiting import PATIENCE_SECONDS

HOUR = 3600.0


class Connection:
    """A connection's task and writer, in place of a handler."""

    def __init__(self, outbox: NativeOutbox) -> None:
        self.link = ScriptedLink([])
        self.writer = FrameWriter(cast("AsyncLink", self.link), outbox, lambda size: None)
        self.task = asyncio.ensure_future(asyncio.Event().wait())

    async def requests_sent(self) -> list[int]:
        """Send queued frames; return the numbers of the requests replied to over this link."""
        await self.writer.flush()
        return [cast("Reply", decode_frame(frame)).request for frame in self.link.sent]

    async def is_cancelled(self) -> bool:
        """Whether the task was cancelled; run it first, so that a cancellation takes effect."""
        await asyncio.sleep(0)
        return self.task.cancelled()


class Sample:
    """An open session, its attachment, and how often it was freed."""

    def __init__(self, host: Host, token: str = "") -> None:
        self.host = host
        self.outbox = NativeOutbox(lambda task, slot: None)
        grant = Grant(token)
        self.session = host.devices[0].open_session(
            host.draw_session_id(grant), self.outbox, NATIVE_TRANSFERS, grant
        )
        self.freed = 0
        self.is_free = asyncio.Event()
        self.attachments = Attachments()
        self.attachment = Attachment(self.session, self.outbox, self.free)
        self.attachments.add(self.attachment)
        self.connections: list[Connection] = []

    def free(self, attachment: Attachment) -> None:
        assert attachment is self.attachment
        self.freed += 1
        self.is_free.set()
        self.attachments.forget(attachment)
        self.host.end_session(self.session)

    def connect(self) -> tuple[Connection, int]:
        """Attach a new connection; return it and the number of its link."""
        connection = Connection(self.outbox)
        self.connections.append(connection)
        return connection, self.attachment.attach(connection.task, connection.writer)

    def resume(self, received: int = 0, *, token: str | None = None, **changes: Any) -> Attachment:
        """Ask for the session as its client would, except for ``changes``."""
        asked = {"session": self.session.identifier, "secret": self.session.secret, **changes}
        token = self.session.token if token is None else token
        return self.attachments.resume(Resume(received=received, **asked), token)

    def send_replies(self, *requests: int) -> None:
        for request in requests:
            self.outbox.reply(request, None)


@contextlib.asynccontextmanager
async def opened(token: str = "") -> AsyncIterator[Sample]:
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
        host = Host(Settings(), [NumpyBackend()], tasks)
        sample = Sample(host, token)
        yield sample
        for connection in sample.connections:
            connection.task.cancel()
        host.draining.set()


async def after_timers_due_now() -> None:
    """Wait until the event loop has called every timer that is due."""
    for _ in range(2):
        called = asyncio.Event()
        asyncio.get_running_loop().call_later(0, called.set)
        await called.wait()


# -- leases ---------------------------------------------------------------------------------------


async def test_a_session_that_nobody_resumes_is_freed_when_its_lease_ends() -> None:
    async with opened() as sample:
        _, link = sample.connect()
        sample.attachment.detach(link, 0.0)
        assert sample.freed == 0
        await sample.is_free.wait()
        assert sample.freed == 1
        with pytest.raises(SessionLost):
            sample.resume()


async def test_a_resumed_session_outlives_the_lease_of_its_last_break() -> None:
    async with opened() as sample:
        _, link = sample.connect()
        sample.attachment.detach(link, 0.0)
        sample.resume()
        _, link = sample.connect()
        sample.attachment.detach(link, HOUR)  # a new lease; the old one must not end it
        await after_timers_due_now()
        assert sample.freed == 0
        sample.attachment.close(link)


async def test_a_break_that_is_reported_twice_starts_one_lease() -> None:
    async with opened() as sample:
        _, link = sample.connect()
        for _ in range(2):
            sample.attachment.detach(link, 0.0)
        sample.resume()  # ends the one lease; another one would free the session
        await after_timers_due_now()
        assert sample.freed == 0


async def test_a_session_that_is_closed_under_its_lease_is_freed_once() -> None:
    async with opened() as sample:
        _, link = sample.connect()
        sample.attachment.detach(link, 0.0)
        sample.attachment.close(link)
        sample.attachment.close(link)
        await after_timers_due_now()
        assert sample.freed == 1


async def test_a_session_whose_client_left_is_freed_when_its_lease_ends() -> None:
    async with opened() as sample:
        _, link = sample.connect()
        sample.attachment.leave()
        sample.attachment.detach(link, 0.0)  # the client hung up after its ``Closing``
        await sample.is_free.wait()


async def test_a_session_without_a_connection_sends_nothing_and_keeps_nothing_of_the_last() -> None:
    async with opened() as sample:
        connection, link = sample.connect()
        sample.attachment.detach(link, HOUR)
        sample.send_replies(1)
        sample.session.notify()
        assert await connection.requests_sent() == []
        writer = weakref.ref(connection.writer)
        sample.connections.clear()
        del connection
        gc.collect()
        assert writer() is None
        sample.attachment.close(link)


# -- takeovers ------------------------------------------------------------------------------------


async def test_a_resume_ends_the_connection_that_serves_the_session() -> None:
    async with opened() as sample:
        older, _ = sample.connect()
        sample.send_replies(1, 2)
        sample.resume()
        newer, _ = sample.connect()
        assert await older.is_cancelled()
        assert await older.requests_sent() == []
        assert await newer.requests_sent() == [1, 2]
        assert not await newer.is_cancelled()


async def test_the_last_of_several_resumes_wins() -> None:
    async with opened() as sample:
        sample.connect()
        for _ in range(3):
            sample.resume()
            sample.connect()
        *older, newest = sample.connections
        assert [await connection.is_cancelled() for connection in older] == [True] * 3
        sample.send_replies(1)
        assert [await each.requests_sent() for each in older] == [[]] * 3
        assert await newest.requests_sent() == [1]


async def test_the_end_of_an_older_connection_does_not_touch_its_successor() -> None:
    async with opened() as sample:
        _, older = sample.connect()
        sample.resume()
        newest, link = sample.connect()
        assert not sample.attachment.serves(older)
        sample.attachment.detach(older, 0.0)
        sample.attachment.close(older)
        await after_timers_due_now()
        assert sample.freed == 0
        assert sample.attachment.serves(link)
        assert not await newest.is_cancelled()
        sample.send_replies(1)
        assert await newest.requests_sent() == [1]


async def test_finished_work_wakes_the_newest_connection() -> None:
    async with opened() as sample:
        sample.connect()
        sample.resume()
        newest, _ = sample.connect()
        writing = asyncio.create_task(newest.writer.run())
        await asyncio.sleep(0)  # it waits for frames
        sample.send_replies(1)
        sample.session.notify()
        await newest.link.wait_sent(1)
        writing.cancel()


async def test_a_connection_that_detaches_itself_is_not_cancelled() -> None:
    async with opened() as sample:

        async def serve() -> str:
            me = asyncio.current_task()
            assert me is not None
            writer = FrameWriter(
                cast("AsyncLink", ScriptedLink([])), sample.outbox, lambda size: None
            )
            sample.attachment.detach(sample.attachment.attach(me, writer), HOUR)
            await asyncio.sleep(0)  # a cancellation would be raised here
            return "ended by itself"

        assert await asyncio.create_task(serve()) == "ended by itself"
        sample.attachment.close(1)


# -- refused resumes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [{"session": 1}, {"secret": b"x" * 16}, {"secret": b""}, {"token": "bob"}]
)
async def test_a_resume_without_the_secret_or_token_is_refused_alike_and_changes_nothing(
    wrong: dict[str, Any],
) -> None:
    async with opened(token="alice") as sample:
        connection, link = sample.connect()
        with pytest.raises(SessionLost) as caught:
            sample.resume(**wrong)
        assert str(caught.value) == "the server does not know this session, or it has ended"
        assert sample.attachment.serves(link)
        assert not await connection.is_cancelled()
        sample.send_replies(1)
        assert await connection.requests_sent() == [1]


async def test_a_resume_with_an_impossible_count_changes_nothing() -> None:
    async with opened() as sample:
        connection, link = sample.connect()
        sample.send_replies(1, 2)
        await connection.requests_sent()
        sample.attachment.note_acknowledged(1)
        for count in (0, 3):  # one that it dropped, one that it never sent
            with pytest.raises(SessionLost):
                sample.resume(count)
        assert sample.attachment.serves(link)
        assert not await connection.is_cancelled()
        assert sample.attachment.received == 0
        assert len(sample.outbox.window) == 1


async def test_a_session_whose_client_left_cannot_be_resumed() -> None:
    async with opened() as sample:
        connection, link = sample.connect()
        sample.attachment.leave()
        with pytest.raises(SessionLost):
            sample.resume()
        assert sample.attachment.serves(link)
        assert not await connection.is_cancelled()
        sample.attachment.close(link)
        assert sample.freed == 1


# -- counts ---------------------------------------------------------------------------------------


async def test_frames_that_the_client_lacks_are_sent_again_before_new_ones() -> None:
    async with opened() as sample:
        older, link = sample.connect()
        sample.send_replies(1, 2, 3)
        assert await older.requests_sent() == [1, 2, 3]
        sample.attachment.detach(link, HOUR)
        sample.send_replies(4)
        sample.resume(received=1)
        newer, _ = sample.connect()
        assert await newer.requests_sent() == [2, 3, 4]


async def test_frames_of_an_older_link_do_not_count() -> None:
    async with opened() as sample:
        _, older = sample.connect()
        sample.attachment.note_frame(older)
        sample.resume()
        _, newer = sample.connect()
        sample.attachment.note_frame(older)
        assert sample.attachment.received == 1
        sample.attachment.note_frame(newer)
        assert sample.attachment.received == 2


async def test_an_acknowledgement_is_due_after_so_many_frames_and_has_their_number() -> None:
    async with opened() as sample:
        _, link = sample.connect()
        for _ in range(ACKNOWLEDGE_EVERY - 1):
            sample.attachment.note_frame(link)
        assert not sample.attachment.owes_acknowledgement
        sample.attachment.note_frame(link)
        assert sample.attachment.owes_acknowledgement
        assert sample.attachment.acknowledgement().received == ACKNOWLEDGE_EVERY
        assert not sample.attachment.owes_acknowledgement


async def test_the_count_in_a_welcome_is_an_acknowledgement() -> None:
    async with opened() as sample:
        _, link = sample.connect()
        for _ in range(ACKNOWLEDGE_EVERY):
            sample.attachment.note_frame(link)
        sample.resume()
        sample.connect()
        assert not sample.attachment.owes_acknowledgement


async def test_frames_that_were_not_sent_cannot_be_acknowledged() -> None:
    async with opened() as sample:
        connection, _ = sample.connect()
        sample.send_replies(1)
        with pytest.raises(ProtocolViolation):
            sample.attachment.note_acknowledged(1)
        await connection.requests_sent()
        sample.attachment.note_acknowledged(1)
        assert len(sample.outbox.window) == 0


@pytest.mark.parametrize(
    ("limit", "what"),
    [
        ("MAX_UNACKNOWLEDGED_FRAMES", "unacknowledged frames"),
        ("MAX_UNACKNOWLEDGED_BYTES", "unacknowledged bytes"),
    ],
)
async def test_a_client_that_acknowledges_too_little_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, limit: str, what: str
) -> None:
    async with opened() as sample:
        connection, _ = sample.connect()
        sample.send_replies(1, 2, 3)
        await connection.requests_sent()
        allowed = 2 if "FRAMES" in limit else sample.outbox.window.bytes - 1
        monkeypatch.setattr(module, limit, allowed)
        with pytest.raises(LimitExceeded, match=what):
            sample.attachment.note_acknowledged(0)
        sample.attachment.note_acknowledged(1)


# -- any order of events --------------------------------------------------------------------------

EVENTS = st.lists(
    st.sampled_from(["reply", "send", "break", "old break", "resume", "expire", "leave", "close"]),
    max_size=30,
)


@settings(max_examples=50)
@given(EVENTS)
def test_in_any_order_of_events_each_reply_arrives_once_and_the_session_is_freed_once(
    events: list[str],
) -> None:
    asyncio.run(_replay(events))


class Play:
    """A session, its client, and random events."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.attachment = sample.attachment
        self.connection, self.link = sample.connect()
        self.received: list[int] = []  # requests answered to the client, over all links
        self.replies = 0
        self.is_attached = True
        self.is_leaving = False

    async def perform(self, event: str) -> None:
        """Perform an event."""
        if event in ("send", "expire") and not self.is_attached:
            return
        await {
            "reply": self.reply,
            "send": self.send,
            "break": self.break_off,
            "old break": self.break_old,
            "resume": self.resume,
            "expire": self.expire,
            "leave": self.leave,
            "close": self.close,
        }[event]()
        self.is_attached = self.is_attached and not self.sample.freed

    async def reply(self) -> None:
        self.replies += 1
        self.sample.send_replies(self.replies)

    async def send(self) -> None:
        before = len(self.connection.link.sent)
        self.received += (await self.connection.requests_sent())[before:]

    async def break_off(self) -> None:
        self.attachment.detach(self.link, HOUR)
        self.is_attached = False

    async def break_old(self) -> None:
        self.attachment.detach(self.link - 1, 0.0)
        self.attachment.close(self.link - 1)

    async def resume(self) -> None:
        if self.is_leaving or self.sample.freed:
            with pytest.raises(SessionLost):
                self.sample.resume(len(self.received))
            return
        self.sample.resume(len(self.received))
        self.connection, self.link = self.sample.connect()
        self.is_attached = True

    async def expire(self) -> None:
        self.attachment.detach(self.link, 0.0)
        await after_timers_due_now()
        assert self.sample.freed == 1

    async def leave(self) -> None:
        if not self.sample.freed:
            self.attachment.leave()
            self.is_leaving = True

    async def close(self) -> None:
        self.attachment.close(self.link)


async def _replay(events: list[str]) -> None:
    async with opened() as sample:
        play = Play(sample)
        for event in [*events, "break", "close"]:
            await play.perform(event)
            assert play.received == [*range(1, len(play.received) + 1)]
            running = [each for each in sample.connections if not await each.is_cancelled()]
            assert running in ([], [play.connection])
        await after_timers_due_now()
        assert sample.freed == 1
        assert not sample.host.sessions
