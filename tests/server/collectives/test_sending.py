"""A member's sender: the queue before its thread, and what other threads send past it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from burn_remote_protocol.errors import ConnectionLost
from burn_remote_protocol.messages import BeginCollective, GroupBroken
from burn_remote_server.collectives.links import Piece
from burn_remote_server.collectives.sending import Sender
from support.waiting import PATIENCE_SECONDS, wait_until

BEGUN = BeginCollective(0, bytes(16), "a call")
NOTICE = GroupBroken(9, 0, "it left the group")


def piece(number: int) -> Piece:
    return Piece(0, number, memoryview(b"elements"))


class Link:
    """An ``Outgoing`` that records what is sent, and by which thread.

    ``begin`` leaves its last item unless ``takes_all``. Sending waits while ``is_free`` is not set.
    """

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.senders: list[int] = []
        self.takes_all = True
        self.is_free = threading.Event()
        self.is_free.set()
        self.is_broken = False
        self._rest: list[object] = []

    def _note(self, item: object) -> None:
        if self.is_broken:
            raise ConnectionLost("the test broke it")
        self.sent.append(item)
        self.senders.append(threading.get_ident())

    def send(self, message: BeginCollective | GroupBroken | None) -> None:
        self.finish()
        if message is not None:
            self._note(message)

    def send_piece(self, piece: Piece) -> None:
        assert self.is_free.wait(PATIENCE_SECONDS)
        self.finish()
        self._note(piece)

    @property
    def accepts(self) -> bool:
        return not self._rest

    def begin(self, items: Sequence[BeginCollective | Piece]) -> bool:
        count = len(items) if self.takes_all else len(items) - 1
        for item in items[:count]:
            self._note(item)
        self._rest.extend(items[count:])
        return self.takes_all

    def finish(self) -> None:
        rest, self._rest = self._rest, []
        for item in rest:
            self._note(item)

    def close(self) -> None:
        pass


class Owner:
    """A ``SenderOwner`` that records."""

    def __init__(self) -> None:
        self.counted = 0
        self.lost: list[str] = []

    def may_send(self, sequence: int) -> bool:
        return True

    def sent(self, size: int) -> None:
        self.counted += size

    def beat(self) -> None:
        pass

    def next_lost(self, reason: str) -> None:
        self.lost.append(reason)


@pytest.fixture
def parts() -> Iterator[tuple[Sender, Link, Owner]]:
    """A sender whose thread runs, its link and its owner."""
    sender, link, owner = Sender(60.0, "sends"), Link(), Owner()
    sender.attach(link)
    sender.start(owner)
    yield sender, link, owner
    link.is_free.set()
    sender.finish(NOTICE, PATIENCE_SECONDS)


def queue(sender: Sender, *items: Piece) -> None:
    for item in items:
        sender.send(item, 0, lambda: None)


def test_an_idle_sender_lets_other_threads_send(parts: tuple[Sender, Link, Owner]) -> None:
    sender, link, owner = parts
    assert sender.begin([BEGUN, piece(0)], owner)
    assert sender.begin([piece(1)], owner)
    assert link.sent == [BEGUN, piece(0), piece(1)]
    assert {*link.senders} == {threading.get_ident()}
    assert owner.counted == 2 * len(b"elements")


def test_nothing_overtakes_what_is_queued_or_being_sent(parts: tuple[Sender, Link, Owner]) -> None:
    sender, link, owner = parts
    link.is_free.clear()
    queue(sender, piece(0), piece(1))
    assert not sender.begin([piece(2)], owner)
    queue(sender, piece(2))
    link.is_free.set()
    wait_until(lambda: len(link.sent) == 3)
    assert link.sent == [piece(0), piece(1), piece(2)]
    assert threading.get_ident() not in link.senders


def test_the_thread_sends_what_the_link_did_not_accept(parts: tuple[Sender, Link, Owner]) -> None:
    sender, link, owner = parts
    link.takes_all = False
    assert sender.begin([BEGUN, piece(0)], owner)
    wait_until(lambda: len(link.sent) == 2)
    assert link.sent == [BEGUN, piece(0)]
    assert link.senders[0] == threading.get_ident() != link.senders[1]
    queue(sender, piece(1))
    wait_until(lambda: link.sent[2:] == [piece(1)])


def test_a_broken_link_is_reported_by_the_thread(parts: tuple[Sender, Link, Owner]) -> None:
    sender, link, owner = parts
    link.is_broken = True
    assert not sender.begin([piece(0)], owner)
    assert not owner.lost
    queue(sender, piece(0))
    wait_until(lambda: owner.lost == ["the test broke it"])
    link.is_broken = False  # the thread has closed the link, and nobody uses it any more
    assert not sender.begin([piece(1)], owner)
    assert not link.sent


def test_without_a_link_everything_is_queued() -> None:
    sender, link, owner = Sender(60.0, "sends"), Link(), Owner()
    sender.start(owner)
    assert not sender.begin([piece(0)], owner)
    queue(sender, piece(0))
    sender.attach(link)
    sender.finish(NOTICE, PATIENCE_SECONDS)
    assert link.sent == [piece(0), NOTICE]
