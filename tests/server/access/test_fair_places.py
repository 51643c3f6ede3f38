"""One party takes at most half of the places, and leaves room for others."""

from __future__ import annotations

from burn_remote_server.access.fair_places import FairPlaces


def test_each_party_takes_fewer_places_than_are_free() -> None:
    places = FairPlaces(16)
    taken = {}
    for party in ("alice", "bob", "carol"):
        while places.take(party):
            pass
        taken[party] = places.taken(party)
    assert taken == {"alice": 8, "bob": 4, "carol": 2}
    assert places.total == 14


def test_places_that_are_given_back_can_be_taken_again() -> None:
    places = FairPlaces(2)
    assert places.take("alice")
    assert not places.take("alice")
    places.give_back("alice")
    assert (places.total, places.taken("alice")) == (0, 0)
    assert places.take("bob")


def test_without_places_nobody_takes_one() -> None:
    assert not FairPlaces(0).take("alice")
