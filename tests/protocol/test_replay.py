"""After a break exactly the frames that the other side lacks are sent again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.errors import SessionLost
from burn_remote_protocol.replay import ReplayWindow


@given(st.lists(st.booleans(), max_size=60), st.data())
def test_the_receiver_gets_every_frame_once_wherever_the_connection_breaks(
    breaks: list[bool], data: st.DataObject
) -> None:
    window: ReplayWindow[int] = ReplayWindow()
    received: list[int] = []
    lost_from: int | None = None  # the first frame of a broken connection that did not arrive
    for number, broken in enumerate(breaks):
        window.append(number, 1)
        if lost_from is None and not broken:
            received.append(number)
        elif lost_from is None:
            lost_from = number
        if data.draw(st.booleans()):
            if lost_from is None:
                window.acknowledge(len(received))
            else:  # reconnect: the receiver says what it has, the rest comes again
                window.acknowledge(len(received))
                received += window.frames()
                lost_from = None
    window.acknowledge(len(received))
    received += window.frames()
    assert received == list(range(len(breaks)))


def test_the_window_counts_the_bytes_that_are_not_acknowledged() -> None:
    window: ReplayWindow[str] = ReplayWindow()
    window.append("a", 10)
    window.append("b", 5)
    assert (window.bytes, window.sent, len(window)) == (15, 2, 2)
    window.acknowledge(1)
    assert (window.bytes, window.sent, list(window.frames())) == (5, 2, ["b"])


@pytest.mark.parametrize("received", [0, 3])
def test_a_count_that_cannot_be_means_another_session(received: int) -> None:
    window: ReplayWindow[str] = ReplayWindow()
    window.append("a", 1)
    window.append("b", 1)
    window.acknowledge(1)
    with pytest.raises(SessionLost, match="frames"):
        window.acknowledge(received)
