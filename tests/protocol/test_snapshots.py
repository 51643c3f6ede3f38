"""Copies of dicts are complete although finalizers and other threads change the dicts meanwhile."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from weakref import WeakKeyDictionary

from burn_remote_protocol.snapshots import items_of, living_keys
from support.garbage import finalizers_that_call

ROOT = Path(__file__).parents[2]
LENGTH = 1000


class Key:
    """An object with weak references."""


def test_items_are_copied_although_finalizers_add_others() -> None:
    mapping = {number: str(number) for number in range(LENGTH)}
    new = itertools.count(LENGTH)
    expected = [*mapping.items()]
    with finalizers_that_call(lambda: mapping.update({next(new): "new"})):
        for _ in range(20):
            found = items_of(mapping)
            assert [*itertools.islice(found, LENGTH)] == expected
    assert len(mapping) > LENGTH


def test_items_are_those_at_the_time_of_the_copy() -> None:
    mapping = {1: "one"}
    found = items_of(mapping)
    mapping.clear()
    assert [*found] == [(1, "one")]


def test_living_keys_are_copied_although_finalizers_add_and_free_others() -> None:
    keys = [Key() for _ in range(LENGTH)]
    mapping: WeakKeyDictionary[Key, None] = WeakKeyDictionary(dict.fromkeys(keys))
    added: list[Key] = []

    def change() -> None:
        added.append(Key())
        mapping[added[-1]] = None
        if len(added) > 5:
            del added[0]

    with finalizers_that_call(change):
        for _ in range(20):
            found = living_keys(mapping)
            assert found[:LENGTH] == keys
            del found
    added.clear()
    assert living_keys(mapping) == keys


def test_no_dict_of_an_object_is_copied_by_unpacking_its_items() -> None:
    found = [
        str(path)
        for package in ("client", "protocol", "server")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"\*self\.[\w.]+\.items\(\)", path.read_text("utf-8"))
    ]
    assert found == [], "use items_of instead"
