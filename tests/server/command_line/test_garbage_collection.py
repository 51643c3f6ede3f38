"""Garbage collection in a server; each test runs a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

_START = """
import gc, weakref
from burn_remote_server.command_line.garbage_collection import BoundedCollector
from burn_remote_server.command_line.garbage_collection import EXAMINED_OBJECTS, GROWTH

class Node:
    pass

def cycle():
    node = Node()
    node.itself = node
    return node

examined = []

def count(phase, about):
    if phase == "start" and about["generation"] == 2:
        examined.append(len(gc.get_objects()))

gc.disable()  # as the command does while it starts
collector = BoundedCollector()
collector.install()
gc.callbacks.insert(0, count)
"""


def _run(program: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", _START + program], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="its collector is incremental by itself")
def test_a_collection_examines_a_bounded_number_of_objects_however_many_there_are() -> None:
    counts = _run("kept = [[] for _ in range(1_000_000)]; print(len(examined), max(examined))")
    collections, most = map(int, counts.split())
    assert collections > 10
    assert most < 50_000


def test_what_survived_a_collection_and_became_garbage_is_freed_later() -> None:
    _run("""
node = cycle()
gone = weakref.ref(node)
gc.collect()
del node
gc.collect()
assert gone() is not None  # frozen
assert collector.examine_all()
assert gone() is None
""")


def test_more_objects_than_are_examined_at_once_are_examined_when_they_have_multiplied() -> None:
    _run("""
kept = [[] for _ in range(EXAMINED_OBJECTS + 1000)]
gc.collect()
assert not collector.examine_all()
kept += [[] for _ in range((GROWTH - 1) * EXAMINED_OBJECTS)]
gc.collect()
assert collector.examine_all()
assert not collector.examine_all()
""")
