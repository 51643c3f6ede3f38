"""The store of kept tensors: bounded, least recently used first, and separate for each token."""

from __future__ import annotations

import numpy as np
import pytest

from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import OperationFailed, QuotaExceeded
from burn_remote_protocol.kept_tensors import MAX_PUBLISHED
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.access.quota import TENSOR_BYTES, Pool, Quota
from burn_remote_server.tensors.kept_tensors import KeptTensor, KeptTensors

SIZE = 4000
COUNTED = SIZE + TENSOR_BYTES


def kept(value: float = 0.0) -> KeptTensor:
    array = np.full(SIZE // 4, value, np.float32)
    return KeptTensor(array, TensorSpec(array.shape, F32), SIZE)


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def store(pool: Pool | None = None, contents: int = 10, clock: Clock | None = None) -> KeptTensors:
    return KeptTensors(pool or Pool(2**30), contents * COUNTED, 60.0, clock or Clock())


def test_a_content_belongs_to_its_token() -> None:
    tensors = store()
    assert tensors.keep_content("alice", b"d", [kept(1)])
    assert tensors.open_content("bob", b"d") is None
    (found,) = tensors.open_content("alice", b"d") or ()
    assert found.shared[0] == 1


def test_the_least_recently_used_content_is_freed_first() -> None:
    pool = Pool(2**30)
    tensors = store(pool, contents=2)
    for digest in (b"a", b"b"):
        tensors.keep_content("", digest, [kept()])
    tensors.open_content("", b"a")
    tensors.keep_content("", b"c", [kept()])
    assert [bool(tensors.open_content("", digest)) for digest in (b"a", b"b", b"c")] == [
        True, False, True
    ]  # fmt: skip
    assert pool.taken == tensors.content_bytes == 2 * COUNTED


def test_a_content_larger_than_the_room_is_not_kept_and_frees_none() -> None:
    tensors = store(contents=2)
    tensors.keep_content("", b"a", [kept()])
    assert not tensors.keep_content("", b"b", [kept(), kept(), kept()])
    assert tensors.open_content("", b"a")


class InterruptedPool(Pool):
    """A pool that keeps another content each time a session is about to take memory."""

    other: tuple[KeptTensors, bytes] | None = None

    def take(self, size: int) -> bool:
        if self.other is not None:
            (tensors, digest), self.other = self.other, None
            tensors.keep_content("", digest, [kept()])
        return super().take(size)


@pytest.mark.parametrize("digest", [b"a", b"b"], ids=["the same", "another"])
def test_two_sessions_at_once_do_not_exceed_the_room(digest: bytes) -> None:
    pool = InterruptedPool(2**30)
    tensors = store(pool, contents=1)
    pool.other = tensors, digest
    assert tensors.keep_content("", b"a", [kept()]) == (digest == b"a")
    assert tensors.open_content("", digest)
    assert pool.taken == tensors.content_bytes == COUNTED


def test_a_content_without_use_expires() -> None:
    clock, pool = Clock(), Pool(2**30)
    tensors = store(pool, clock=clock)
    tensors.keep_content("", b"a", [kept()])
    tensors.keep_content("", b"b", [kept()])
    clock.now = 59.0
    tensors.open_content("", b"a")
    clock.now = 61.0
    tensors.expire()
    assert tensors.open_content("", b"a")
    assert not tensors.open_content("", b"b")
    assert pool.taken == COUNTED


def test_sessions_take_the_memory_of_contents() -> None:
    pool = Pool(4 * COUNTED + 100)  # sessions take a share more than they need
    tensors = store(pool)
    for digest in (b"a", b"b", b"c"):
        tensors.keep_content("", digest, [kept()])
    quota = Quota(2**30, 10, None, pool)
    quota.take(3 * COUNTED, 1)
    assert [bool(tensors.open_content("", digest)) for digest in (b"a", b"b", b"c")] == [
        False, False, True
    ]  # fmt: skip
    with pytest.raises(QuotaExceeded):
        quota.take(2 * COUNTED, 1)
    quota.give_back(3 * COUNTED, 1)
    quota.end()
    assert pool.taken == tensors.content_bytes


def test_contents_do_not_displace_tensors_of_sessions() -> None:
    pool = Pool(2 * COUNTED)
    tensors = store(pool)
    Quota(2**30, 10, None, pool).take(2 * COUNTED, 1)
    assert not tensors.keep_content("", b"a", [kept()])
    assert pool.taken == 2 * COUNTED


def test_the_same_content_counts_once() -> None:
    pool = Pool(2**30)
    tensors = store(pool)
    for _ in range(2):
        assert tensors.keep_content("", b"a", [kept()])
    assert pool.taken == tensors.content_bytes == COUNTED


def test_a_name_belongs_to_its_token_and_is_replaced_in_place() -> None:
    pool = Pool(2**30)
    tensors = store(pool)
    tensors.publish("alice", "w", kept(1), 2**30)
    tensors.publish("bob", "w", kept(2), 2**30)
    tensors.publish("alice", "w", kept(3), 2**30)
    assert tensors.published("alice")["w"].shared[0] == 3
    assert tensors.published("bob")["w"].shared[0] == 2
    assert tensors.published("carol") == {}
    assert pool.taken == tensors.published_bytes == 2 * COUNTED
    assert tensors.unpublish("alice", "w")
    assert not tensors.unpublish("alice", "w")
    assert pool.taken == COUNTED


def test_the_names_of_a_token_are_bounded_in_bytes_and_number() -> None:
    pool = Pool(2**30)
    tensors = store(pool)
    tensors.publish("", "a", kept(1), COUNTED)
    with pytest.raises(QuotaExceeded, match="published bytes of one token"):
        tensors.publish("", "b", kept(2), COUNTED)
    tensors.publish("", "a", kept(3), COUNTED)
    assert tensors.published("")["a"].shared[0] == 3
    assert pool.taken == COUNTED
    for number in range(MAX_PUBLISHED - 1):
        tensors.publish("", f"name {number}", kept(), 2**30)
    with pytest.raises(QuotaExceeded, match="names of one token"):
        tensors.publish("", "one more", kept(), 2**30)
    tensors.publish("", "a", kept(4), 2**30)
    assert pool.taken == MAX_PUBLISHED * COUNTED


def test_a_name_that_does_not_fit_into_the_memory_of_all_sessions_is_refused() -> None:
    pool = Pool(2 * COUNTED - 1)
    tensors = store(pool)
    tensors.publish("", "a", kept(1), 2**30)
    with pytest.raises(QuotaExceeded, match="bytes of all sessions"):
        tensors.publish("", "b", kept(2), 2**30)
    assert [*tensors.published("")] == ["a"]
    assert pool.taken == COUNTED


def test_named_tensors_are_not_freed_for_others() -> None:
    pool = Pool(2 * COUNTED)
    tensors = store(pool)
    tensors.publish("", "a", kept(1), 2**30)
    assert not pool.take(2 * COUNTED)
    assert tensors.published("")


def test_what_belongs_to_removed_tokens_is_freed() -> None:
    pool = Pool(2**30)
    tensors = store(pool)
    for owner in ("alice", "bob"):
        tensors.keep_content(owner, b"a", [kept()])
        tensors.publish(owner, "w", kept(), 2**30)
    tensors.forget_others({"bob"})
    assert tensors.open_content("alice", b"a") is None
    assert tensors.published("alice") == {}
    assert tensors.open_content("bob", b"a")
    assert tensors.published("bob")
    assert pool.taken == 2 * COUNTED


def test_a_session_of_a_removed_token_can_keep_nothing_more() -> None:
    pool = Pool(2**30)
    tensors = store(pool)
    tensors.forget_others({"bob"})
    with pytest.raises(OperationFailed, match="the token 'alice' was removed"):
        tensors.publish("alice", "w", kept(), 2**30)
    assert not tensors.keep_content("alice", b"a", [kept()])
    assert pool.taken == 0
    tensors.forget_others({"alice", "bob"})  # the token is back
    tensors.publish("alice", "w", kept(), 2**30)
    assert tensors.keep_content("alice", b"a", [kept()])
