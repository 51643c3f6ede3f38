"""A tensor that shares a connection fairly is never given up for that; one that is forgotten is."""

from __future__ import annotations

import random

from burn_remote_server.transfers.pace import BEHIND_BYTES, Moment, Turns

CHUNK = 512 * 1024


def test_a_tensor_that_gets_its_turns_is_within_what_is_allowed() -> None:
    """Of a random number of tensors, some of which begin and end meanwhile."""
    rng = random.Random(1)
    for _ in range(50):
        turns, arrived, received = Turns(), rng.randrange(10**9), 0
        waiting = [rng.randrange(1, 10**7) for _ in range(rng.randrange(50))]
        running = begun = len(waiting) + 1
        assert turns.allowed(Moment(arrived, received, running, begun)) > arrived
        for _ in range(200):
            for _ in range(rng.randrange(3)):
                waiting.append(rng.randrange(1, 10**7))
                begun += 1
            arrived += sum(min(CHUNK, left) for left in waiting) + CHUNK
            received += CHUNK
            waiting = [left - CHUNK for left in waiting if left > CHUNK]
            running = len(waiting) + 1
            assert turns.allowed(Moment(arrived, received, running, begun)) > arrived


def test_one_of_which_nothing_comes_any_more_is_beyond_it_in_the_end() -> None:
    turns = Turns()
    for arrived in range(0, 10**9, CHUNK):  # it is alone, and all that comes is its own
        assert turns.allowed(Moment(arrived, arrived, 1, 1)) > arrived
    received = arrived
    for _ in range(5 * 2 * BEHIND_BYTES // CHUNK):
        arrived += CHUNK  # of another one
        allowed = turns.allowed(Moment(arrived, received, 2, 2))
    assert arrived > allowed
