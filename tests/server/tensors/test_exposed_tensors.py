"""The registry of exposed tensors serves each fetch once, in any order, within bounds."""

from __future__ import annotations

import functools
import threading
import weakref
from types import SimpleNamespace

import pytest

from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import QuotaExceeded, TransferFailed
from burn_remote_protocol.ids import is_secret
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.tensors import exposed_tensors as module
from burn_remote_server.tensors.exposed_tensors import (
    BURN,
    Exposed,
    ExposeLimits,
    Transfers,
    burn_domain,
    transfer_key,
)
from support.waiting import PATIENCE_SECONDS

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


def test_a_tensor_is_served_as_often_as_its_expose_permits() -> None:
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


def test_ids_of_two_dialects_are_separate() -> None:
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


def test_the_end_of_a_session_withdraws_its_exposed_tensors() -> None:
    registry = Transfers()
    other = object()
    expose(registry, exposed())
    registry.expose(("native", b"b"), exposed(), owner=other, count=1, expires_seconds=9)
    registry.withdraw(OWNER)
    assert len(registry) == 1


def test_the_exposed_tensors_of_a_session_are_bounded() -> None:
    registry, limits = Transfers(), ExposeLimits(count=2)
    for name in (b"1", b"2"):
        registry.expose(("native", name), exposed(), owner=OWNER, count=1, expires_seconds=9)
    with pytest.raises(QuotaExceeded, match="3 would be exposed, 2 are allowed"):
        expose(registry, exposed(), limits=limits)
    expose(registry, exposed(), limits=limits, owner=object())  # another owner's


def test_the_exposed_bytes_of_a_session_are_bounded() -> None:
    registry, limits = Transfers(), ExposeLimits(bytes=7)
    registry.expose(("native", b"1"), exposed(), owner=OWNER, count=1, expires_seconds=9)
    with pytest.raises(QuotaExceeded, match="8 would be held, 7 are allowed"):
        expose(registry, exposed(), limits=limits)
    registry.fetch(("native", b"1"), lambda _: None)
    expose(registry, exposed(), limits=limits)  # fetched tensors no longer count


def test_a_tensor_expires_after_the_servers_limit_if_that_is_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    registry = Transfers()
    expose(registry, exposed(), expires_seconds=86_400.0, limits=ExposeLimits(seconds=5.0))
    now = 105.1
    registry.expire()
    assert len(registry) == 0


def test_waiting_fetches_of_a_refused_expose_get_its_error() -> None:
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


def test_the_number_of_waiting_fetches_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 4)
    registry = Transfers()
    for name in (b"1", b"2"):
        registry.fetch(("native", name), print)
    with pytest.raises(TransferFailed, match="2 fetches of this client, and 2 of all"):
        registry.fetch(KEY, print)


def test_the_waiting_fetches_of_one_party_leave_room_for_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 16)
    registry = Transfers()
    waiting: dict[str, list[int]] = {}
    for party in ("alice", "bob", "carol"):
        tickets = waiting[party] = []
        with pytest.raises(TransferFailed, match="already wait"):
            while True:
                tickets.append(registry.fetch(KEY, print, party))
    assert {party: len(tickets) for party, tickets in waiting.items()} == {
        "alice": 8,
        "bob": 4,
        "carol": 2,
    }
    for ticket in waiting["alice"]:
        registry.forget(KEY, ticket)
    registry.fetch(KEY, print, "carol")


def test_fetches_under_one_id_count_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 6)
    registry = Transfers()
    got: list[Exposed] = []
    tickets = [registry.fetch(KEY, got.append) for _ in range(3)]
    with pytest.raises(TransferFailed, match="3 fetches of this client"):
        registry.fetch(KEY, got.append)
    registry.forget(KEY, tickets[1])
    registry.forget(("native", b"another"), tickets[0])
    registry.fetch(KEY, got.append)


@pytest.mark.parametrize("end", ["expose", "fail"])
def test_fetches_that_ended_make_room(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 4)
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
    with pytest.raises(TransferFailed, match="2 fetches of this client"):
        registry.fetch(KEY, got.append)


def test_a_fetched_tensor_is_freed_before_its_deadline() -> None:
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
    """An object that supports weak references."""


class CountingOwner:
    """An owner that counts how often its entries are compared."""

    looks = 0

    def __eq__(self, other: object) -> bool:
        CountingOwner.looks += 1
        return self is other

    __hash__ = object.__hash__


def test_forgetting_one_of_many_fetches_under_an_id_takes_constant_time() -> None:
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
    assert registry._places.total == 0
    assert not registry._waiting


def test_a_withdrawal_does_not_visit_other_sessions_entries() -> None:
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


def test_tensors_under_one_id_are_fetched_in_the_order_of_their_exposes() -> None:
    registry = Transfers()
    received: list[Exposed] = []
    for name in ("first", "second"):
        expose(registry, exposed(name), is_secret=False)
    for _ in range(2):
        registry.fetch(KEY, received.append)
    assert received == [exposed("first"), exposed("second")]


def test_waiting_fetches_are_served_in_their_order() -> None:
    registry = Transfers()
    received: list[int] = []
    for number in range(3):
        registry.fetch(KEY, lambda _, number=number: received.append(number))  # type: ignore[misc]
    expose(registry, exposed(), count=2)
    assert received == [0, 1]
    expose(registry, exposed())
    assert received == [0, 1, 2]


def test_a_callback_may_use_the_registry() -> None:
    registry = Transfers()
    received: list[Exposed] = []
    other = ("native", b"other")

    def expose_another(_: Exposed) -> None:
        registry.expose(other, exposed("b"), owner=OWNER, count=1, expires_seconds=60.0)
        registry.fetch(other, received.append)

    registry.fetch(KEY, expose_another)
    expose(registry, exposed())
    assert received == [exposed("b")]


def test_failed_tensors_and_exposes_without_fetches_take_no_bytes() -> None:
    registry = Transfers()
    failed = Exposed(None, TensorSpec((10,), F32), None, TransferFailed("x"))  # type: ignore[arg-type]
    expose(registry, failed, limits=ExposeLimits(bytes=0))
    expose(registry, exposed(), count=0, limits=ExposeLimits(count=0))
    assert len(registry) == 1


def test_exposes_fetches_and_expired_tensors_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    registry = Transfers()
    expose(registry, exposed(), count=2, expires_seconds=5.0)
    registry.fetch(KEY, lambda _: None)
    now = 106.0
    assert not registry.expire()
    assert (registry.exposed, registry.served, registry.expired) == (1, 1, 1)


def test_concurrent_exposes_and_fetches_are_paired_once_each() -> None:
    registry = Transfers()
    received: list[int] = []
    barrier = threading.Barrier(2)
    keys = [("native", bytes([number])) for number in range(200)]

    def expose_all() -> None:
        barrier.wait(PATIENCE_SECONDS)
        for key in keys:
            registry.expose(key, exposed(), owner=OWNER, count=1, expires_seconds=60.0)

    thread = threading.Thread(target=expose_all, daemon=True)
    thread.start()
    barrier.wait(PATIENCE_SECONDS)
    for number, key in enumerate(keys):
        registry.fetch(key, lambda _, number=number: received.append(number))  # type: ignore[misc]
    thread.join(PATIENCE_SECONDS)
    assert sorted(received) == [*range(200)]
    assert len(registry) == 0
    assert registry.exposed_by(OWNER) == 0


@pytest.mark.parametrize(
    ("one", "other", "are_equal"),
    [
        ("ws://gpu-box:3000/", "ws://GPU-box:3000", True),
        ("ws://gpu-box:80/1", "ws://gpu-box/1", True),
        ("ws://gpu-box//token/1", "ws://gpu-box/token/1", True),
        ("ws://gpu-box/token/a", "ws://gpu-box/token/b", False),
        ("ws://gpu-box/token/A", "ws://gpu-box/token/a", False),
        ("ws://one", "ws://other", False),
    ],
)
def test_the_domain_of_small_ids_is_the_address_without_its_spelling(
    one: str, other: str, are_equal: bool
) -> None:
    assert (burn_domain(one) == burn_domain(other)) == are_equal
    assert burn_domain(one).startswith(BURN)


def test_only_secret_numbers_are_found_from_every_domain() -> None:
    secret = 2**63 + 12345
    assert is_secret(secret)
    assert transfer_key("a", secret) == transfer_key("b", secret)
    assert transfer_key("a", 1) != transfer_key("b", 1)
    assert transfer_key("a", bytes(32)) != transfer_key("b", bytes(32))
