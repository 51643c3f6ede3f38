"""Each frame arrives once and in order, in any sequence of breaks, resumes and acknowledgements."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from burn_remote_protocol.errors import ProtocolViolation, SessionLost
from burn_remote_protocol.session_states import (
    ACKNOWLEDGE_BYTES,
    ACKNOWLEDGE_EVERY,
    MAX_FRUITLESS_RESUMES,
    TRANSITIONS,
    Action,
    Event,
    ReplayWindow,
    Role,
    SessionEnd,
    State,
)
from support.buffered_pair import END, BufferedPair

CLIENT, SERVER = 0, 1


class End:
    """One end of a session: a ``SessionEnd`` and the I/O of a client or server, on fake links."""

    def __init__(self, role: Role, side: int) -> None:
        self.side = side
        self.end: SessionEnd[tuple[str, int, int]] = SessionEnd(role)
        self.end.fire(Event.OPENED)
        self.pair: BufferedPair | None = None
        self.numbers: dict[int, int] = {}  # of a link, by the identity of its pair
        self.delivered: list[int] = []
        self.sent = 0

    def use(self, pair: BufferedPair) -> None:
        """Serve the session over this pair, as its newest link."""
        self.pair = pair
        self.numbers[id(pair)] = self.end.link

    def number(self, pair: BufferedPair) -> int:
        return self.numbers.get(id(pair), 0)

    def send(self) -> None:
        """Send a session frame with the count of received frames, as a batch has."""
        frame = ("frame", self.sent, self.end.take_received())
        self.sent += 1
        self.end.window.append(frame, 1)
        self.pass_on(frame)

    def acknowledge(self) -> None:
        self.pass_on(("acknowledged", 0, self.end.take_received()))

    def pass_on(self, frame: Any) -> None:
        if self.end.state is State.ATTACHED and self.pair is not None:
            self.pair.send(self.side, frame)

    def replay(self) -> None:
        for frame in self.end.window.frames():
            self.pass_on(frame)

    def take(self, pair: BufferedPair, frame: Any) -> None:
        """Handle a frame of the session from any link."""
        number = self.number(pair)
        kind, payload, received = frame
        if kind == "frame" and not self.end.receive(number):
            return
        if kind == "frame":
            self.delivered.append(payload)
        self.end.acknowledge(received)


class Sessions(RuleBasedStateMachine):
    """A client and a server of one session, and all their links so far."""

    def __init__(self) -> None:
        super().__init__()
        self.client = End(Role.CLIENT, CLIENT)
        self.server = End(Role.SERVER, SERVER)
        self.pairs = [BufferedPair()]
        self.client.use(self.pairs[0])
        self.server.use(self.pairs[0])
        self.attempt: BufferedPair | None = None  # a resume without an answer
        self.refusal: SessionLost | None = None
        self.lease = False

    # -- both ends ----------------------------------------------------------------------------

    @precondition(lambda self: self.client.end.state is not State.ENDED)
    @rule(count=st.integers(1, 40))
    def client_sends(self, count: int) -> None:
        for _ in range(count):
            self.client.send()

    @precondition(lambda self: self.server.end.state is not State.ENDED)
    @rule(count=st.integers(1, 40))
    def server_sends(self, count: int) -> None:
        for _ in range(count):
            self.server.send()

    @rule(at_client=st.booleans(), late=st.integers(0, 3))
    def acknowledges_late(self, at_client: bool, late: int) -> None:
        """Deliver an acknowledgement that was written before later ones."""
        end = self.client if at_client else self.server
        end.pass_on(("acknowledged", 0, max(0, end.end.received - late)))

    @rule(link=st.integers(0, 3), count=st.integers(1, 60))
    def server_receives(self, link: int, count: int) -> None:
        pair = self.pairs[-1 - link % len(self.pairs)]
        for _ in range(count):
            if not pair.is_readable(SERVER):
                return
            self.server_takes(pair, pair.receive(SERVER))

    @rule(link=st.integers(0, 3), count=st.integers(1, 60))
    def client_receives(self, link: int, count: int) -> None:
        pair = self.pairs[-1 - link % len(self.pairs)]
        for _ in range(count):
            if not pair.is_readable(CLIENT):
                return
            self.client_takes(pair, pair.receive(CLIENT))

    # -- the network --------------------------------------------------------------------------

    @rule(link=st.integers(0, 3), resets=st.booleans())
    def breaks(self, link: int, resets: bool) -> None:
        pair = self.pairs[-1 - link % len(self.pairs)]
        if resets:
            pair.reset()
        else:  # what is buffered still arrives at both ends
            pair.close(CLIENT)
            pair.close(SERVER)

    # -- the client ---------------------------------------------------------------------------

    @precondition(lambda self: self.client.end.state is State.ATTACHED)
    @rule()
    def client_notices_a_break(self) -> None:
        """A send fails, although received frames are still buffered."""
        pair = self.client.pair
        assert pair is not None
        if Action.RESUME in self.client.end.broke(self.client.number(pair)):
            pair.close(CLIENT)

    @precondition(lambda self: self.client.end.state is State.DETACHED)
    @rule()
    def client_resumes(self) -> None:
        """Start a resume and abandon an earlier attempt, whose frames may still arrive."""
        if self.attempt is not None:
            self.attempt.close(CLIENT)
        self.attempt = BufferedPair()
        self.pairs.append(self.attempt)
        self.client.end.begin_link()
        self.attempt.send(CLIENT, ("resume", 0, self.client.end.received))

    def client_takes(self, pair: BufferedPair, frame: Any) -> None:
        client = self.client
        if frame is END:
            if pair is self.attempt:
                self.attempt = None
            elif Action.RESUME in client.end.broke(client.number(pair)):
                pair.close(CLIENT)
        elif frame[0] == "refused":
            if pair is self.attempt:
                self.refusal = frame[1]
                client.end.fire(Event.CLOSE)
        elif frame[0] == "welcome":
            if pair is self.attempt and client.end.state is State.DETACHED:
                client.end.resumed(frame[2])
                client.use(pair)
                self.attempt = None
                client.replay()
        else:
            client.take(pair, frame)

    @precondition(lambda self: self.client.end.state in (State.ATTACHED, State.DETACHED))
    @rule(rarely=st.integers(0, 9))
    def client_closes(self, rarely: int) -> None:
        if rarely:
            return
        self.client.pass_on(("closing", 0, 0))
        self.client.end.fire(Event.CLOSE)
        for pair in (self.client.pair, self.attempt):
            if pair is not None:
                pair.close(CLIENT)

    # -- the server ---------------------------------------------------------------------------

    def server_takes(self, pair: BufferedPair, frame: Any) -> None:
        server = self.server
        if frame is END:
            self.server_perform(server.end.broke(server.number(pair)))
            pair.close(SERVER)
        elif frame[0] == "resume":
            self.server_resumes(pair, frame[2])
        elif frame[0] == "closing":
            if server.number(pair) == server.end.link:
                self.server_perform(server.end.fire(Event.CLOSING))
        else:
            server.take(pair, frame)

    def server_resumes(self, pair: BufferedPair, received: int) -> None:
        server = self.server
        before = (server.end.state, server.end.link, server.end.window.acknowledged)
        try:
            duty = server.end.resumed(received)
        except SessionLost as error:
            after = (server.end.state, server.end.link, server.end.window.acknowledged)
            assert after == before
            pair.send(SERVER, ("refused", error, 0))
            pair.close(SERVER)
            return
        old = server.pair
        server.end.begin_link()
        server.use(pair)
        self.server_perform(duty)
        if Action.CLOSE_LINK in duty and old is not None:
            old.close(SERVER)
        pair.send(SERVER, ("welcome", 0, server.end.received))
        server.replay()

    def server_perform(self, duty: Action) -> None:
        if Action.STOP_LEASE in duty:
            self.lease = False
        if Action.START_LEASE in duty:
            self.lease = True

    @precondition(lambda self: self.lease)
    @rule(rarely=st.integers(0, 9))
    def lease_ends(self, rarely: int) -> None:
        if not rarely:
            self.lease = False
            self.server_perform(self.server.end.fire(Event.EXPIRED))

    @precondition(lambda self: self.server.end.state is State.LEAVING)
    @rule()
    def server_finishes(self) -> None:
        self.server_perform(self.server.end.fire(Event.FINISHED))

    # -- invariants ---------------------------------------------------------------------------

    @invariant()
    def each_frame_arrives_once_and_in_order(self) -> None:
        for sender, receiver in ((self.client, self.server), (self.server, self.client)):
            assert receiver.delivered == list(range(len(receiver.delivered)))
            assert len(receiver.delivered) == receiver.end.received <= sender.sent
            assert sender.end.window.sent == sender.sent

    @invariant()
    def a_lease_runs_only_while_no_link_serves(self) -> None:
        state = self.server.end.state
        assert self.lease if state is State.DETACHED else not self.lease or state is State.LEAVING

    @invariant()
    def nothing_needed_was_forgotten(self) -> None:
        for sender, receiver in ((self.client, self.server), (self.server, self.client)):
            assert sender.end.window.acknowledged <= receiver.end.received

    def teardown(self) -> None:
        """Check that an open session resumes and completes on a healthy network."""
        for _ in range(8):
            self.deliver_all()
            if self.client.end.state is State.DETACHED:
                self.client_resumes()
        if State.ENDED in (self.client.end.state, self.server.end.state) or (
            self.server.end.state is State.LEAVING
        ):
            return
        assert self.client.end.state is self.server.end.state is State.ATTACHED
        assert not self.lease
        assert len(self.server.delivered) == self.client.sent
        assert len(self.client.delivered) == self.server.sent

    def deliver_all(self) -> None:
        for pair in self.pairs:
            while pair.is_readable(SERVER) and not pair.is_closed(SERVER):
                self.server_takes(pair, pair.receive(SERVER))
            while pair.is_readable(CLIENT):
                frame = pair.receive(CLIENT)
                self.client_takes(pair, frame)
                if frame is END:
                    break


Sessions.TestCase.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
TestSessions = Sessions.TestCase


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_every_event_either_has_a_row_or_is_refused(state: State, event: Event) -> None:
    end: SessionEnd[int] = SessionEnd(Role.SERVER)
    end.state = state
    if (state, event) in TRANSITIONS:
        end.fire(event)
        assert end.state is TRANSITIONS[state, event].state
    else:
        with pytest.raises(SessionLost, match=state.name.lower()):
            end.fire(event)
        assert end.state is state


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("state", [state for state in State if state is not State.ENDED])
def test_every_transition_to_the_end_frees_the_session_once(role: Role, state: State) -> None:
    for (before, event), transition in TRANSITIONS.items():
        if before is state and transition.state is State.ENDED:
            end: SessionEnd[int] = SessionEnd(role)
            end.state = state
            assert Action.FREE in end.fire(event)
            assert end.fire(event) is Action.NOTHING


def test_the_window_counts_the_bytes_that_are_not_acknowledged() -> None:
    window: ReplayWindow[str] = ReplayWindow()
    window.append("a", 10)
    window.append("b", 5)
    assert (window.bytes, window.sent, len(window)) == (15, 2, 2)
    window.acknowledge(1)
    assert (window.bytes, window.sent, list(window.frames())) == (5, 2, ["b"])


def test_an_old_acknowledgement_changes_nothing() -> None:
    window: ReplayWindow[str] = ReplayWindow()
    window.append("a", 1)
    window.append("b", 1)
    window.acknowledge(1)
    window.acknowledge(0)
    assert list(window.frames()) == ["b"]


def test_acknowledging_more_than_was_sent_is_a_protocol_violation() -> None:
    window: ReplayWindow[str] = ReplayWindow()
    window.append("a", 1)
    with pytest.raises(ProtocolViolation, match="acknowledges 2 frames; 1 were sent"):
        window.acknowledge(2)
    assert len(window) == 1


def resumable(sent: int, acknowledged: int, role: Role = Role.SERVER) -> SessionEnd[int]:
    """Return a detached end."""
    end: SessionEnd[int] = SessionEnd(role)
    end.fire(Event.OPENED)
    for number in range(sent):
        end.window.append(number, 1)
    end.acknowledge(acknowledged)
    end.broke(end.link)
    return end


@pytest.mark.parametrize("received", [0, 3])
def test_a_resume_that_cannot_succeed_is_refused_and_changes_nothing(received: int) -> None:
    end = resumable(sent=2, acknowledged=1)
    with pytest.raises(SessionLost, match="frames"):
        end.resumed(received)
    assert (end.state, end.link, len(end.window)) == (State.DETACHED, 1, 1)


def test_frames_of_an_older_link_are_ignored_from_the_moment_a_resume_is_built() -> None:
    end: SessionEnd[int] = SessionEnd(Role.CLIENT)
    end.fire(Event.OPENED)
    old = end.link
    assert end.receive(old)
    end.broke(old)
    assert end.receive(old)  # buffered, and not yet replaced
    end.begin_link()
    assert not end.receive(old)
    assert end.received == 2


def test_the_end_of_an_older_link_does_not_detach_the_session_from_a_newer_one() -> None:
    end = resumable(sent=0, acknowledged=0)
    old = end.link
    end.resumed(0)
    end.begin_link()
    assert end.broke(old) is Action.NOTHING
    assert end.state is State.ATTACHED


@pytest.mark.parametrize("role", Role)
def test_a_frame_that_never_arrives_ends_the_session_after_a_bounded_number_of_resumes(
    role: Role,
) -> None:
    end = resumable(sent=1, acknowledged=0, role=role)
    for _ in range(MAX_FRUITLESS_RESUMES):
        end.resumed(0)
        end.broke(end.begin_link())
    with pytest.raises(SessionLost, match="broke 100 times in a row"):
        end.resumed(0)
    end.resumed(1)  # but not once it has arrived


def test_an_idle_session_resumes_any_number_of_times() -> None:
    end = resumable(sent=1, acknowledged=1)
    for _ in range(3 * MAX_FRUITLESS_RESUMES):
        end.resumed(1)
        end.broke(end.begin_link())
    assert end.state is State.DETACHED


def test_an_acknowledgement_is_owed_every_few_frames() -> None:
    end: SessionEnd[int] = SessionEnd(Role.SERVER)
    for _ in range(ACKNOWLEDGE_EVERY - 1):
        end.receive(end.link)
    assert not end.owes_acknowledgement
    end.receive(end.link)
    assert end.owes_acknowledgement
    assert end.take_received() == ACKNOWLEDGE_EVERY
    assert not end.owes_acknowledgement


def test_an_acknowledgement_is_owed_sooner_after_many_bytes_of_chunks() -> None:
    end: SessionEnd[int] = SessionEnd(Role.SERVER)
    for _ in range(2):  # the count begins again after each acknowledgement
        for size in (ACKNOWLEDGE_BYTES - 1, 1):
            assert not end.owes_acknowledgement
            end.receive(end.link)
            end.note_chunk(size)
        assert end.owes_acknowledgement
        end.take_received()
