"""Exposed tensors and fetches meet: once each, in any order, within bounds."""

from __future__ import annotations

import functools
import weakref

import pytest

from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import QuotaExceeded, TransferFailed
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.execution import exposed as module
from burn_remote_server.execution.exposed import Exposed, ExposeLimits, Transfers

KEY = ("native", b"id")
OWNER = object()


@functools.cache  # exposed tensors are equal only to themselves
def exposed(name: str = "array") -> Exposed:
    return Exposed(name, TensorSpec((1,), F32), backend=None)  # type: ignore[arg-type]


def expose(registry: Transfers, what: Exposed, **how: object) -> None:
    settings = {"owner": OWNER, "count": 1, "expires_seconds": 60.0} | how
    registry.expose(KEY, what, **settings)  # type: ignore[arg-type]


def test_a_fetch_after_the_expose_gets_the_tensor_at_once() -> None:
    registry = Transfers()
    got: list[Exposed] = []
    expose(registry, exposed())
    registry.fetch(KEY, got.append)
    assert got == [exposed()]
    assert len(registry) == 0


def test_a_fetch_before_the_expose_waits_for_it() -> None:
    registry = Transfers()
    got: list[Exposed] = []
    registry.fetch(KEY, got.append)
    assert got == []
    expose(registry, exposed())
    assert got == [exposed()]


def test_a_tensor_is_served_as_often_as_it_was_exposed_for() -> None:
    registry = Transfers()
    got: list[Exposed] = []
    registry.fetch(KEY, got.append)
    expose(registry, exposed(), count=3)
    for _ in range(3):
        registry.fetch(KEY, got.append)
    assert got == [exposed()] * 3


def test_an_id_in_use_is_refused_and_keeps_its_tensor() -> None:
    registry = Transfers()
    got: list[Exposed] = []
    expose(registry, exposed("first"))
    with pytest.raises(TransferFailed, match="in use"):
        expose(registry, exposed("second"))
    registry.fetch(KEY, got.append)
    assert got == [exposed("first")]


def test_ids_of_two_dialects_do_not_meet() -> None:
    registry = Transfers()
    got: list[Exposed] = []
    expose(registry, exposed())
    registry.fetch(("burn-0.21", b"id"), got.append)
    assert got == []


def test_a_tensor_that_nobody_fetches_is_freed_when_it_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    registry = Transfers()
    expose(registry, exposed(), expires_seconds=5.0)
    now = 104.9
    registry.expire()
    assert len(registry) == 1
    now = 105.1
    registry.expire()
    assert len(registry) == 0


def test_a_session_that_ends_takes_its_exposed_tensors_along() -> None:
    registry = Transfers()
    other = object()
    expose(registry, exposed())
    registry.expose(("native", b"b"), exposed(), owner=other, count=1, expires_seconds=9)
    registry.withdraw(OWNER)
    assert len(registry) == 1


def test_a_session_may_expose_only_so_many() -> None:
    registry, limits = Transfers(), ExposeLimits(count=2)
    for name in (b"1", b"2"):
        registry.expose(("native", name), exposed(), owner=OWNER, count=1, expires_seconds=9)
    with pytest.raises(QuotaExceeded, match="3 would be exposed, 2 are allowed"):
        expose(registry, exposed(), limits=limits)
    expose(registry, exposed(), limits=limits, owner=object())  # another's


def test_a_session_may_expose_only_so_many_bytes() -> None:
    registry, limits = Transfers(), ExposeLimits(bytes=7)
    registry.expose(("native", b"1"), exposed(), owner=OWNER, count=1, expires_seconds=9)
    with pytest.raises(QuotaExceeded, match="8 would be held, 7 are allowed"):
        expose(registry, exposed(), limits=limits)
    registry.fetch(("native", b"1"), lambda _: None)
    expose(registry, exposed(), limits=limits)  # what was fetched counts no longer


def test_a_tensor_expires_when_the_server_says_so_if_that_is_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    registry = Transfers()
    expose(registry, exposed(), expires_seconds=86_400.0, limits=ExposeLimits(seconds=5.0))
    now = 105.1
    registry.expire()
    assert len(registry) == 0


def test_those_who_wait_for_a_tensor_that_was_refused_learn_why() -> None:
    registry = Transfers()
    got: list[Exposed] = []
    registry.fetch(KEY, got.append)
    registry.fail(KEY, exposed("refusal"))
    assert got == [exposed("refusal")]


def test_a_fetch_that_gave_up_does_not_take_the_tensor() -> None:
    registry = Transfers()
    got: list[Exposed] = []
    late: list[Exposed] = []
    registry.forget(KEY, registry.fetch(KEY, late.append))
    expose(registry, exposed())
    registry.fetch(KEY, got.append)
    assert (got, late) == ([exposed()], [])


def test_only_so_many_fetches_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    registry = Transfers()
    for name in (b"1", b"2"):
        registry.fetch(("native", name), print)
    with pytest.raises(TransferFailed, match="2"):
        registry.fetch(KEY, print)


def test_fetches_under_one_id_count_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    registry = Transfers()
    got: list[Exposed] = []
    tickets = [registry.fetch(KEY, got.append) for _ in range(3)]
    with pytest.raises(TransferFailed, match="3 fetches wait"):
        registry.fetch(KEY, got.append)
    registry.forget(KEY, tickets[1])
    registry.forget(("native", b"another"), tickets[0])
    registry.fetch(KEY, got.append)


@pytest.mark.parametrize("end", ["expose", "fail"])
def test_fetches_that_ended_make_room(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    registry = Transfers()
    got: list[Exposed] = []
    for _ in range(2):
        registry.fetch(KEY, got.append)
    if end == "expose":
        expose(registry, exposed(), count=2)
    else:
        registry.fail(KEY, exposed())
    assert len(got) == 2
    for _ in range(2):
        registry.fetch(KEY, got.append)
    with pytest.raises(TransferFailed, match="2 fetches wait"):
        registry.fetch(KEY, got.append)


def test_what_was_fetched_is_not_held_until_the_deadline_of_what_was_not() -> None:
    registry = Transfers()
    registry.expose(("native", b"kept"), exposed(), owner=OWNER, count=1, expires_seconds=60)
    alive: list[weakref.ref[Tensor]] = []
    for number in range(1000):
        tensor = Tensor()
        alive.append(weakref.ref(tensor))
        key = ("native", number.to_bytes(4, "big"))
        what = Exposed(tensor, TensorSpec((1,), F32), backend=None)  # type: ignore[arg-type]
        registry.expose(key, what, owner=OWNER, count=1, expires_seconds=60)
        registry.fetch(key, lambda _: None)
        del tensor, what
    assert not any(reference() for reference in alive)
    assert len(registry._deadlines) < 200


class Tensor:
    """Something whose end can be seen."""


class CountingOwner:
    """An owner that counts how often its entries are looked at."""

    looks = 0

    def __eq__(self, other: object) -> bool:
        CountingOwner.looks += 1
        return self is other

    __hash__ = object.__hash__


def test_giving_up_looks_at_one_of_many_fetches_under_the_same_id() -> None:
    registry = Transfers()
    looked = 0

    class Callback:
        def __call__(self, exposed: Exposed) -> None:
            raise AssertionError("nothing is exposed")

        def __eq__(self, other: object) -> bool:
            nonlocal looked
            looked += 1
            return self is other

        __hash__ = object.__hash__

    tickets = [registry.fetch(KEY, Callback()) for _ in range(1000)]
    for ticket in reversed(tickets):
        registry.forget(KEY, ticket)
    assert looked == 0
    assert registry._waiting_count == 0
    assert not registry._waiting


def test_a_session_that_exposed_nothing_withdraws_without_a_look_at_what_others_exposed() -> None:
    registry = Transfers()
    others = CountingOwner()
    for number in range(1000):
        key = ("native", number.to_bytes(4, "big"))
        registry.expose(key, exposed(), owner=others, count=1, expires_seconds=60)
    CountingOwner.looks = 0
    registry.withdraw(CountingOwner())
    assert CountingOwner.looks == 0
    registry.withdraw(others)
    assert len(registry) == 0


def test_a_session_withdraws_its_own_of_several_tensors_under_one_id() -> None:
    registry = Transfers()
    got: list[Exposed] = []
    first, second = object(), object()
    for owner, name in ((first, "a"), (second, "b"), (first, "c")):
        registry.expose(
            KEY, exposed(name), owner=owner, count=1, expires_seconds=60, is_secret=False
        )
    registry.withdraw(first)
    registry.fetch(KEY, got.append)
    assert got == [exposed("b")]
    assert len(registry) == 0


def test_tensors_that_expire_at_one_moment_are_freed_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "EXPIRED_AT_ONCE", 10)
    registry = Transfers()
    for number in range(25):
        key = ("native", number.to_bytes(4, "big"))
        registry.expose(key, exposed(), owner=OWNER, count=1, expires_seconds=60)
    registry._deadlines = [(0.0, *deadline[1:]) for deadline in registry._deadlines]
    left = []
    while registry.expire():
        left.append(len(registry))
    assert left == [15, 5]
    assert len(registry) == 0
