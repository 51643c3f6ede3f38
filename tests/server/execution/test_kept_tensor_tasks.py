"""Kept tensors in sessions: verified, separate for each token, and never changed by anybody."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from burn_remote_protocol.dtypes import BF16, BOOL, C64, F32, I64, DType
from burn_remote_protocol.errors import OperationFailed, ProtocolViolation, QuotaExceeded
from burn_remote_protocol.kept_tensors import content_hash
from burn_remote_protocol.messages import (
    BeginUpload,
    Chunk,
    Define,
    Drop,
    KeepContent,
    ListPublished,
    OpenContent,
    OpenPublished,
    Publish,
    Read,
    Unpublish,
    Upload,
)
from burn_remote_protocol.tensors import Slice, TensorData, TensorSpec
from burn_remote_server.access.quota import TENSOR_BYTES, Pool
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.tensors.kept_tensors import KeptTensors, OwnKeptTensors
from support.engines import EngineSession, floats, vector
from support.kernels import signature

# Kernels write their results over dying inputs of at least 256 KiB.
LENGTH = 2**16
SPEC = vector(LENGTH)
PLUS_ONE = signature("Numeric.AddScalar", SPEC, rhs=1.0)


class Device:
    """A store of kept tensors, and sessions with it."""

    def __init__(self, content_bytes: int = 2**30) -> None:
        self.backend = NumpyBackend()
        self.pool = Pool(2**32)
        self.kept = KeptTensors(self.pool, content_bytes, 60.0)

    def session(self, owner: str = "alice", **options: Any) -> EngineSession:
        own = OwnKeptTensors(self.kept, owner, 2**30)
        return EngineSession(backend=self.backend, pool=self.pool, kept=own, **options)


def elements(value: float) -> TensorData:
    return TensorData(np.full(LENGTH, value, np.float32).tobytes(), (LENGTH,), F32)


def digest_of(*parts: TensorData) -> bytes:
    hashing = content_hash([part.spec for part in parts])
    for part in parts:
        hashing.update(part.bytes)
    return hashing.digest()


def upload(session: EngineSession, tensor: int, part: TensorData) -> None:
    session.run(BeginUpload(tensor, part.spec, part.spec.nbytes))
    if part.spec.nbytes:
        session.engine.write_chunk(Chunk(tensor, 0, memoryview(part.bytes)))


def upload_and_keep(session: EngineSession, *parts: TensorData, first: int = 1) -> bytes:
    digest = digest_of(*parts)
    for place, part in enumerate(parts):
        upload(session, first + place, part)
    session.run(KeepContent(digest, first, tuple(part.spec for part in parts)))
    return digest


def reply(session: EngineSession, task: Any) -> Any:
    session.run(task)
    return session.outbox.replies.pop(task.request)


def test_another_session_of_the_token_opens_a_content_in_one_task() -> None:
    device = Device()
    parts = floats(1, 2), TensorData(b"\1\0", (2,), BOOL), floats()
    digest = upload_and_keep(device.session(), *parts)
    session = device.session()
    assert reply(session, OpenContent(1, digest, 7, 3)) == 1
    for place, part in enumerate(parts):
        read = reply(session, Read(2, 7 + place, part.spec))
        assert bytes(read.bytes) == bytes(part.bytes)


@pytest.mark.parametrize("dtype", [F32, I64, BF16, BOOL, C64])
def test_every_dtype_keeps_its_bytes(dtype: DType) -> None:
    device = Device()
    raw = bytes([0, 1] * 24) if dtype is BOOL else np.random.default_rng(0).bytes(48)
    part = TensorData(raw, (2, 24 // TensorSpec((1,), dtype).nbytes), dtype)
    digest = upload_and_keep(device.session(), part)
    session = device.session()
    assert reply(session, OpenContent(1, digest, 1, 1)) == 1
    assert bytes(reply(session, Read(2, 1, part.spec)).bytes) == bytes(part.bytes)


def test_another_token_finds_nothing() -> None:
    device = Device()
    digest = upload_and_keep(device.session("alice"), floats(1))
    bob = device.session("bob")
    assert reply(bob, OpenContent(1, digest, 1, 1)) == 0
    assert isinstance(reply(bob, Read(2, 1, vector(1))), OperationFailed)
    assert reply(bob, ListPublished(3, None)) == ()


def test_elements_with_another_digest_are_not_kept() -> None:
    device = Device()
    session = device.session()
    wrong = digest_of(floats(2))
    session.run(Upload(1, floats(1)), KeepContent(wrong, 1, (vector(1),)))
    assert reply(session, OpenContent(1, wrong, 2, 1)) == 0
    assert session.values(1, size=1) == [1]
    assert device.kept.content_bytes == 0


def test_the_digest_covers_shapes_and_dtypes() -> None:
    zeros = TensorData(bytes(8), (2,), F32)
    others = [
        (TensorData(bytes(8), (1, 2), F32),),
        (TensorData(bytes(8), (1,), I64),),
        (TensorData(bytes(4), (1,), F32), TensorData(bytes(4), (1,), F32)),
    ]
    assert len({digest_of(zeros), *(digest_of(*parts) for parts in others)}) == 4


def test_tensors_that_failed_or_have_not_arrived_are_not_kept() -> None:
    device = Device()
    session = device.session()
    session.run(BeginUpload(1, vector(1), 4))
    for tensor in (1, 2):
        session.run(KeepContent(digest_of(floats(0)), tensor, (vector(1),)))
    assert device.kept.content_bytes == 0
    assert session.outbox.failures == []


def test_a_session_without_room_opens_nothing_of_a_content() -> None:
    device = Device()
    digest = upload_and_keep(device.session(), floats(1, 2), floats(3, 4))
    session = device.session(max_bytes=12)
    refused = reply(session, OpenContent(1, digest, 1, 2))
    assert isinstance(refused, QuotaExceeded)
    assert (session.quota.bytes, session.quota.tensors) == (0, 0)


def test_a_session_that_ends_leaves_the_content_to_others() -> None:
    device = Device()
    first = device.session()
    digest = upload_and_keep(first, floats(5))
    first.engine.close()
    assert reply(device.session(), OpenContent(1, digest, 1, 1)) == 1


def test_a_kernel_never_writes_over_kept_memory() -> None:
    device = Device()
    first, second = device.session(), device.session()
    digest = upload_and_keep(first, elements(1))
    assert reply(first, Publish(1, "w", 1, SPEC)) is None
    assert reply(second, OpenContent(1, digest, 1, 1)) == 1
    for session in (first, second):
        session.run(Define(0, PLUS_ONE), (0, 1, 2), Drop((1,)))
        assert {*session.values(2, size=LENGTH)} == {2}
    third = device.session()
    assert reply(third, OpenContent(1, digest, 1, 1)) == 1
    third.run(OpenPublished(2, SPEC, "w"))
    assert {*third.values(1, size=LENGTH), *third.values(2, size=LENGTH)} == {1}


def test_a_small_view_is_published_without_the_memory_around_it() -> None:
    device = Device()
    session = device.session()
    narrow = signature("Base.Slice", SPEC, ranges=(Slice(0, 2, 1),))
    upload(session, 1, elements(1))
    session.run(Define(0, narrow), (0, 1, 2))
    before = device.pool.taken
    assert reply(session, Publish(1, "w", 2, vector(2))) is None
    assert device.pool.taken - before < 2000


def test_a_view_is_not_copied_to_be_kept_if_the_copy_does_not_fit() -> None:
    # Otherwise, many sessions could each make a copy before the store refuses it.
    device = Device()
    session = device.session(max_bytes=3 * SPEC.nbytes // 2)
    most = signature("Base.Slice", SPEC, ranges=(Slice(1, LENGTH, 1),))
    view = vector(LENGTH - 1)
    upload(session, 1, elements(1))
    session.run(Define(0, most))
    session.quota.max_bytes *= 2  # the view counts beside the tensor until that is dropped
    session.run((0, 1, 2), Drop((1,)))
    session.quota.max_bytes //= 2
    refused = reply(session, Publish(1, "w", 2, view))
    assert isinstance(refused, QuotaExceeded)
    assert "session bytes" in str(refused)
    digest = digest_of(TensorData(elements(1).bytes[4:], view.shape, F32))
    session.run(KeepContent(digest, 2, (view,)))
    assert reply(session, OpenContent(2, digest, 3, 1)) == 0
    session.quota.max_bytes *= 2
    held = session.quota.held
    assert reply(session, Publish(1, "w", 2, view)) is None
    session.run(KeepContent(digest, 2, (view,)))
    assert session.quota.held == held
    assert device.kept.content_bytes > 0


@pytest.mark.parametrize("kind", ["published", "content"])
def test_no_other_session_takes_the_room_of_a_copy_before_it_is_kept(kind: str) -> None:
    device = Device()
    session = device.session()
    count = LENGTH // 2
    half, view = signature("Base.Slice", SPEC, ranges=(Slice(0, count, 1),)), vector(count)
    upload(session, 1, elements(1))
    session.run(Define(0, half), (0, 1, 2))
    digest = digest_of(TensorData(elements(1).bytes[: view.nbytes], view.shape, F32))
    free = device.pool.max_bytes - device.pool.taken - view.nbytes - TENSOR_BYTES
    assert device.pool.take(free)  # leaves room for one copy

    def take_what_is_free() -> None:
        device.pool.take(device.pool.max_bytes - device.pool.taken)

    device.pool.on_given_back(1, take_what_is_free)
    if kind == "published":
        assert reply(session, Publish(1, "w", 2, view)) is None
    else:
        session.run(KeepContent(digest, 2, (view,)))
        assert device.kept.content_bytes > view.nbytes


def test_a_name_lives_until_it_is_removed() -> None:
    device = Device()
    first = device.session()
    first.upload(1, 1, 2)
    assert reply(first, Publish(1, "w", 1, vector(2))) is None
    first.engine.close()
    second = device.session()
    assert reply(second, ListPublished(1, None)) == (("w", vector(2)),)
    assert reply(second, ListPublished(1, "w")) == (("w", vector(2)),)
    assert reply(second, ListPublished(1, "v")) == ()
    second.run(OpenPublished(1, vector(2), "w"))
    assert reply(second, Unpublish(1, "w")) == 1
    assert reply(second, Unpublish(1, "w")) == 0
    assert second.values(1, size=2) == [1, 2]
    second.run(OpenPublished(2, vector(2), "w"))
    assert "any more" in str(reply(second, Read(1, 2, vector(2))))


def test_a_name_with_another_tensor_by_now_is_a_failure() -> None:
    session = Device().session()
    session.upload(1, 1, 2)
    assert reply(session, Publish(1, "w", 1, vector(2))) is None
    session.run(OpenPublished(2, vector(3), "w"))
    assert "has been replaced by" in str(reply(session, Read(1, 2, vector(3))))


def test_only_a_tensor_that_exists_with_the_given_spec_can_be_published() -> None:
    session = Device().session()
    session.upload(1, 1, 2)
    for tensor, spec in ((2, vector(2)), (1, vector(3)), (1, TensorSpec((2,), I64))):
        assert isinstance(reply(session, Publish(1, "w", tensor, spec)), OperationFailed)
    assert reply(session, ListPublished(1, None)) == ()


def test_a_server_that_keeps_nothing_treats_the_tasks_as_violations() -> None:
    with pytest.raises(ProtocolViolation, match="keeps no tensors"):
        EngineSession().run(ListPublished(1, None))


VALUES = strategies.integers(0, 2)
OWNERS = strategies.sampled_from(["alice", "bob"])
PLACES = strategies.integers(0, 5)


class Interleavings(RuleBasedStateMachine):
    """Sessions of two tokens that upload, keep, open, publish, overwrite, drop and close.

    The model has the value of each tensor, of each name, and what each token has ever kept.
    """

    def __init__(self) -> None:
        super().__init__()
        self.device = Device(content_bytes=3 * (SPEC.nbytes + 1024))
        self.sessions: list[tuple[str, EngineSession, dict[int, int]]] = []
        self.names: dict[tuple[str, str], int] = {}
        self.kept: set[tuple[str, int]] = set()
        self.next_tensor = 1

    def pick(self, place: int) -> tuple[str, EngineSession, dict[int, int]]:
        return self.sessions[place % len(self.sessions)]

    def picked_tensor(self, place: int) -> tuple[str, EngineSession, dict[int, int], int | None]:
        owner, session, tensors = self.pick(place)
        known = [*tensors]
        return owner, session, tensors, known[place % len(known)] if known else None

    def new(self) -> int:
        self.next_tensor += 1
        return self.next_tensor

    @precondition(lambda self: len(self.sessions) < 4)
    @rule(owner=OWNERS)
    def open_session(self, owner: str) -> None:
        session = self.device.session(owner)
        session.run(Define(0, PLUS_ONE))
        self.sessions.append((owner, session, {}))

    @precondition(lambda self: self.sessions)
    @rule(place=PLACES)
    def close_session(self, place: int) -> None:
        chosen = self.pick(place)
        chosen[1].engine.close()
        chosen[1].quota.end()
        self.sessions.remove(chosen)

    @precondition(lambda self: self.sessions)
    @rule(place=PLACES, value=VALUES, keeps=strategies.booleans())
    def upload(self, place: int, value: int, keeps: bool) -> None:
        owner, session, tensors = self.pick(place)
        tensor = self.new()
        upload(session, tensor, elements(value))
        tensors[tensor] = value
        if keeps:
            session.run(KeepContent(digest_of(elements(value)), tensor, (SPEC,)))
            self.kept.add((owner, value))

    @precondition(lambda self: self.sessions)
    @rule(place=PLACES, value=VALUES)
    def open_content(self, place: int, value: int) -> None:
        owner, session, tensors = self.pick(place)
        tensor = self.new()
        if reply(session, OpenContent(1, digest_of(elements(value)), tensor, 1)):
            assert (owner, value) in self.kept, "a content that this token never kept"
            tensors[tensor] = value

    @precondition(lambda self: self.sessions)
    @rule(place=PLACES)
    def overwrite(self, place: int) -> None:
        _, session, tensors, tensor = self.picked_tensor(place)
        if tensor is not None:
            result = self.new()
            session.run((0, tensor, result), Drop((tensor,)))
            tensors[result] = tensors.pop(tensor) + 1

    @precondition(lambda self: self.sessions)
    @rule(place=PLACES)
    def drop(self, place: int) -> None:
        _, session, tensors, tensor = self.picked_tensor(place)
        if tensor is not None:
            session.run(Drop((tensor,)))
            del tensors[tensor]

    @precondition(lambda self: self.sessions)
    @rule(place=PLACES, name=strategies.sampled_from("vw"))
    def publish(self, place: int, name: str) -> None:
        owner, session, tensors, tensor = self.picked_tensor(place)
        if tensor is not None:
            assert reply(session, Publish(1, name, tensor, SPEC)) is None
            self.names[owner, name] = tensors[tensor]

    @precondition(lambda self: self.sessions)
    @rule(place=PLACES, name=strategies.sampled_from("vw"))
    def open_published(self, place: int, name: str) -> None:
        owner, session, tensors = self.pick(place)
        tensor = self.new()
        session.run(OpenPublished(tensor, SPEC, name))
        if (owner, name) in self.names:
            tensors[tensor] = self.names[owner, name]
        else:
            assert isinstance(reply(session, Read(1, tensor, SPEC)), OperationFailed)
            session.run(Drop((tensor,)))

    @precondition(lambda self: self.sessions)
    @rule(place=PLACES, name=strategies.sampled_from("vw"))
    def unpublish(self, place: int, name: str) -> None:
        owner, session, _ = self.pick(place)
        had = self.names.pop((owner, name), None) is not None
        assert reply(session, Unpublish(1, name)) == had

    @rule()
    def free_contents(self) -> None:
        self.device.kept.free_contents(SPEC.nbytes)

    @invariant()
    def every_tensor_has_its_value(self) -> None:
        for _, session, tensors in self.sessions:
            for tensor, value in tensors.items():
                array = session.tensors.arrays[tensor]
                assert (array == value).all(), f"tensor {tensor} changed"

    def teardown(self) -> None:
        while self.sessions:
            self.close_session(0)
        self.device.kept.forget_others([])
        assert self.device.pool.taken == 0, "bytes are still counted"


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
