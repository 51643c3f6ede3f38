"""The engine executes tasks in order, keeps failures in place of tensors and reports each once."""

from __future__ import annotations

from typing import Any

import pytest

from burn_remote_protocol.dialects.native import Batch
from burn_remote_protocol.dtypes import BOOL, F32
from burn_remote_protocol.errors import (
    DeviceLost,
    OperationFailed,
    OutOfMemory,
    ProtocolViolation,
    QuotaExceeded,
    TransferFailed,
    UnknownTensor,
)
from burn_remote_protocol.messages import (
    BeginUpload,
    Chunk,
    Define,
    DefineGraph,
    Drop,
    Expose,
    Fetch,
    QueryDType,
    Read,
    Seed,
    Sync,
    Upload,
)
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.access.quota import FREE_OVERHEAD_BYTES
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.execution.costs import DROPPED_COST
from burn_remote_server.execution.engine import EXPOSED_BYTES
from burn_remote_server.tensors.exposed_tensors import Exposed, ExposeLimits, transfer_key
from support.engines import EngineSession, floats, vector
from support.kernels import signature

ADD = signature("Numeric.Add", vector(2), vector(2))
NEGATE = signature("Numeric.MulScalar", vector(2), rhs=-1.0)
RANDOM = signature("Float.Random", out=vector(2), distribution=("Default",))
SECRET = bytes(range(32))


@pytest.fixture
def session() -> EngineSession:
    """A session with the operations 0 (add) and 1 (negate)."""
    made = EngineSession()
    made.run(Define(0, ADD), Define(1, NEGATE))
    return made


def chunk(tensor: int, offset: int, *values: float) -> Chunk:
    return Chunk(tensor, offset, memoryview(floats(*values).bytes))


# -- order ----------------------------------------------------------------------------------------


def test_a_batch_runs_its_tasks_in_order(session: EngineSession) -> None:
    session.run(
        Upload(1, floats(1, 2)),
        Read(1, 1, vector(2)),
        (1, 1, 1),
        Read(2, 1, vector(2)),
        (0, 1, 1, 1),
        Sync(3),
    )
    assert session.values(1, size=2) == [-2, -4]
    assert session.outbox.replies[1].bytes == floats(1, 2).bytes
    assert session.outbox.replies[2].bytes == floats(-1, -2).bytes
    assert [request for _, request in session.outbox.events][:3] == [1, 2, 3]


def test_a_session_that_ends_skips_the_rest_of_its_batch(
    session: EngineSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.outbox, "reply", lambda request, value: session.engine.stop())
    session.run(Upload(1, floats(1)), QueryDType(7, F32), Upload(2, floats(2)))
    assert session.tensors.arrays.keys() == {1}


def test_a_redefined_number_runs_its_new_signature(session: EngineSession) -> None:
    session.upload(1, 1, 2)
    session.run((1, 1, 2), Define(1, signature("Numeric.MulScalar", vector(2), rhs=3.0)), (1, 1, 3))
    assert session.values(2, size=2) == [-1, -2]
    assert session.values(3, size=2) == [3, 6]


def test_a_dropped_tensor_is_unknown_and_its_memory_free(session: EngineSession) -> None:
    session.upload(1, 1, 2)
    session.run(Drop((1, 99)))
    assert session.quota.bytes == 0
    assert session.quota.tensors == 0
    with pytest.raises(UnknownTensor, match="no tensor 1"):
        session.values(1, size=2)


def test_a_seed_repeats_the_random_numbers(session: EngineSession) -> None:
    session.run(Define(2, RANDOM), Seed(7), (2, 1), Seed(7), (2, 2))
    assert session.values(1, size=2) == session.values(2, size=2)


def test_a_query_of_a_dtype_is_replied_with_its_usage(session: EngineSession) -> None:
    session.run(QueryDType(1, F32))
    assert session.outbox.replies == {1: int(NumpyBackend().dtype_usage(F32))}


@pytest.mark.parametrize("task", [(), 7, None, (77, 1), ([],), ("x",)], ids=str)
def test_a_malformed_task_ends_the_session(session: EngineSession, task: Any) -> None:
    with pytest.raises(ProtocolViolation):
        session.engine.run(Batch(0, (task,)))


@pytest.mark.parametrize("task", [(0, 1, 2), (0, 1, 2, 3, 4), (0, 1, 2, "3"), (0, 1, 2, (3,))])
def test_a_wrong_number_or_type_of_tensor_ids_ends_the_session(
    session: EngineSession, task: Any
) -> None:
    with pytest.raises(ProtocolViolation, match=r"Numeric.Add takes 3 tensor ids"):
        session.run(task)


def test_tasks_before_a_malformed_one_have_run(session: EngineSession) -> None:
    session.upload(1, 1, 2)
    with pytest.raises(ProtocolViolation):
        session.run((1, 1, 2), (0, 1))
    assert session.values(2, size=2) == [-1, -2]


# -- failures -------------------------------------------------------------------------------------


def test_a_failure_passes_through_operations_and_is_reported_once(session: EngineSession) -> None:
    session.upload(1, 1, 2)
    session.run((0, 1, 99, 2), (1, 2, 3), (0, 3, 1, 4))
    ((tensors, failure),) = session.outbox.failures
    assert tensors == (2,)
    assert isinstance(failure, UnknownTensor)
    for tensor in (2, 3, 4):
        with pytest.raises(UnknownTensor) as raised:
            session.values(tensor, size=2)
        assert raised.value.operation == "Numeric.Add"
        assert raised.value.tensor == 2
    assert len(session.outbox.failures) == 1


def test_operations_after_a_failure_run(session: EngineSession) -> None:
    session.upload(1, 1, 2)
    session.run((0, 1, 99, 2), (1, 1, 3))
    assert session.values(3, size=2) == [-1, -2]


def test_a_failed_tensor_can_be_overwritten(session: EngineSession) -> None:
    session.run((1, 99, 2))
    session.upload(2, 5, 6)
    assert session.values(2, size=2) == [5, 6]


def test_a_dropped_failure_leaves_nothing(session: EngineSession) -> None:
    session.run((1, 99, 2), Drop((2,)))
    assert len(session.tensors) == 0
    assert not session.tensors.has_slots()


def test_a_tensor_of_another_shape_fails_only_its_operation(session: EngineSession) -> None:
    session.upload(1, 1, 2, 3)
    session.run((1, 1, 2))
    ((_, failure),) = session.outbox.failures
    assert "float32[3]" in failure.reason
    assert session.values(1, size=3) == [1, 2, 3]


def test_a_read_of_another_shape_is_refused(session: EngineSession) -> None:
    session.upload(1, 1, 2)
    with pytest.raises(UnknownTensor, match=r"has the shape \[2\], not \[3\]"):
        session.values(1, size=3)


def test_an_upload_beyond_the_quota_stores_a_failure() -> None:
    session = EngineSession(max_bytes=16)
    session.upload(1, 1, 2, 3, 4, 5)
    session.upload(2, 1, 2)
    ((tensors, failure),) = session.outbox.failures
    assert tensors == (1,)
    assert isinstance(failure, QuotaExceeded)
    assert (failure.operation, failure.tensor) == ("Upload", 1)
    assert session.values(2, size=2) == [1, 2]
    with pytest.raises(QuotaExceeded):
        session.values(1, size=5)


def test_a_device_without_memory_fails_the_upload_alone() -> None:
    class Full(NumpyBackend):
        def to_device(self, data: TensorData) -> Any:
            raise MemoryError

    session = EngineSession(backend=Full())
    session.upload(1, 1)
    ((_, failure),) = session.outbox.failures
    assert isinstance(failure, OutOfMemory)
    session.run(Sync(1))
    assert session.outbox.replies == {1: None}


def test_a_sync_on_a_lost_device_reports_the_loss_and_replies_without_an_error(
    session: EngineSession,
) -> None:
    session.upload(1, 1, 2)
    session.interpreter.lose("the GPU is gone")
    session.run(Sync(1))
    ((tensors, failure),) = session.outbox.failures
    assert tensors == ()
    assert isinstance(failure, DeviceLost)
    assert session.outbox.replies == {1: None}
    with pytest.raises(DeviceLost, match="the GPU is gone"):
        session.values(1, size=2)


# -- uploads in chunks ----------------------------------------------------------------------------


def test_chunks_in_order_make_a_tensor(session: EngineSession) -> None:
    session.run(BeginUpload(1, vector(3), 12))
    session.engine.write_chunk(chunk(1, 0, 1))
    session.engine.write_chunk(chunk(1, 4, 2, 3))
    assert session.values(1, size=3) == [1, 2, 3]
    assert session.quota.bytes == 12


@pytest.mark.parametrize(
    "wrong", [chunk(1, 4, 1), chunk(1, 0), chunk(1, 0, 1, 2, 3, 4), chunk(1, -4, 1)]
)
def test_a_chunk_out_of_order_or_beyond_the_end_ends_the_session(
    session: EngineSession, wrong: Chunk
) -> None:
    session.run(BeginUpload(1, vector(3), 12))
    with pytest.raises(ProtocolViolation, match="of which 0 of 12 bytes have arrived"):
        session.engine.write_chunk(wrong)


def test_a_chunk_of_a_complete_tensor_ends_the_session(session: EngineSession) -> None:
    session.upload(1, 1, 2)
    with pytest.raises(ProtocolViolation, match="payload 1, which is not being uploaded"):
        session.engine.write_chunk(chunk(1, 0, 1))


def test_chunks_of_a_refused_or_dropped_upload_are_ignored() -> None:
    session = EngineSession(max_bytes=16)
    session.run(BeginUpload(1, vector(5), 20), BeginUpload(2, vector(2), 8), Drop((2,)))
    session.engine.write_chunk(chunk(1, 0, 1))
    session.engine.write_chunk(chunk(2, 0, 1))
    assert [tensors for tensors, _ in session.outbox.failures] == [(1,)]
    assert session.quota.bytes == 0


def test_a_chunk_repeated_after_an_interrupt_is_written_once(session: EngineSession) -> None:
    session.run(BeginUpload(1, vector(2), 8))
    session.engine.write_chunk(chunk(1, 0, 1))
    session.engine.write_chunk(chunk(1, 0, 1), is_repeated=True)
    session.engine.write_chunk(chunk(1, 4, 2))
    session.engine.write_chunk(chunk(1, 4, 2), is_repeated=True)
    assert session.values(1, size=2) == [1, 2]


def test_a_byte_count_of_another_shape_ends_the_session(session: EngineSession) -> None:
    with pytest.raises(ProtocolViolation, match="12 bytes, not 8"):
        session.run(BeginUpload(1, vector(3), 8))


def test_an_upload_without_elements_is_complete_at_once(session: EngineSession) -> None:
    session.run(BeginUpload(1, vector(0), 0))
    assert session.values(1, size=0) == []


def test_an_operation_on_an_unfinished_upload_fails(session: EngineSession) -> None:
    session.run(BeginUpload(1, vector(2), 8), (1, 1, 2))
    ((_, failure),) = session.outbox.failures
    assert "still being uploaded: 0 of 8 bytes" in failure.reason
    session.engine.write_chunk(chunk(1, 0, 3, 4))
    assert session.values(1, size=2) == [3, 4]


# -- expose and fetch -----------------------------------------------------------------------------


def test_an_exposed_tensor_reaches_the_session_that_fetches_it(session: EngineSession) -> None:
    session.upload(1, 1, 2)
    session.run(Expose(1, vector(2), 1, SECRET, 60.0))
    received: list[Exposed] = []
    session.transfers.fetch(transfer_key("test", SECRET), received.append)
    (exposed,) = received
    assert exposed.array.tolist() == [1, 2]
    assert len(session.transfers) == 0


def test_an_exposed_failure_reaches_the_fetcher_and_is_not_reported_again(
    session: EngineSession,
) -> None:
    session.run((1, 99, 1), Expose(1, vector(2), 1, SECRET, 60.0))
    received: list[Exposed] = []
    session.transfers.fetch(transfer_key("test", SECRET), received.append)
    assert isinstance(received[0].failure, UnknownTensor)
    assert len(session.outbox.failures) == 1


def test_an_expose_beyond_the_limit_is_reported_and_fails_waiting_fetches() -> None:
    session = EngineSession(exposes=ExposeLimits(count=0))
    session.upload(1, 1, 2)
    received: list[Exposed] = []
    session.transfers.fetch(transfer_key("test", SECRET), received.append)
    session.transfers.fetch(transfer_key("test", SECRET), received.append)
    session.run(Expose(1, vector(2), 3, SECRET, 60.0))
    ((tensors, failure),) = session.outbox.failures
    assert tensors == (1,)
    assert failure.operation == "Expose"
    assert [type(exposed.failure) for exposed in received] == [QuotaExceeded, QuotaExceeded]


def test_a_fetched_tensor_is_used_when_it_arrives(session: EngineSession) -> None:
    session.run(Fetch(SECRET, "burn://peer", 1, vector(2)))
    ((_, slot),) = session.outbox.fetches
    assert session.tensors.has_slots()
    slot.complete(session.interpreter.backend.to_device(floats(1, 2)))
    session.run((1, 1, 2))
    assert session.values(2, size=2) == [-1, -2]
    assert not session.tensors.has_slots()


def test_a_failed_fetch_fails_the_operations_that_need_it_and_a_sync_does_not(
    session: EngineSession,
) -> None:
    session.run(Fetch(SECRET, "burn://peer", 1, vector(2)))
    ((_, slot),) = session.outbox.fetches
    slot.fail(TransferFailed("the peer is gone", operation="Fetch", tensor=1))
    session.run(Sync(1), (1, 1, 2))
    assert session.outbox.replies == {1: None}
    with pytest.raises(TransferFailed, match="the peer is gone"):
        session.values(2, size=2)


def test_a_fetch_that_cannot_start_fails_its_tensor(session: EngineSession) -> None:
    session.outbox.refuse_fetch = TransferFailed("no such peer")
    session.run(Fetch(SECRET, "burn://peer", 1, vector(2)))
    ((tensors, failure),) = session.outbox.failures
    assert (tensors, failure.operation, failure.tensor) == ((1,), "Fetch", 1)
    with pytest.raises(TransferFailed, match="no such peer"):
        session.values(1, size=2)


# -- estimates and the end ------------------------------------------------------------------------


def test_no_cost_is_estimated_while_a_tensor_is_on_its_way(session: EngineSession) -> None:
    batch = Batch(0, ((1, 1, 2),))
    assert session.engine.estimate(batch) is not None
    session.run(Fetch(SECRET, "burn://peer", 1, vector(2)))
    assert session.engine.estimate(batch) is None


def test_only_the_last_chunk_of_bools_costs_a_check(session: EngineSession) -> None:
    session.run(BeginUpload(1, TensorSpec((4,), BOOL), 4), BeginUpload(2, vector(1), 4))
    half = Chunk(1, 0, memoryview(b"\1\0"))
    assert session.engine.estimate_chunk(half) == 0
    assert session.engine.estimate_chunk(Chunk(1, 0, memoryview(b"\1\0\1\0"))) == 4
    assert session.engine.estimate_chunk(chunk(2, 0, 1)) == 0


def test_closing_frees_tensors_uploads_fetches_and_exposed_tensors(session: EngineSession) -> None:
    before = session.engine.estimate_close()
    session.upload(1, 1, 2)
    session.run(
        BeginUpload(2, vector(2), 8),
        Fetch(SECRET, "burn://peer", 3, vector(2)),
        Expose(1, vector(2), 2, SECRET, 60.0),
    )
    assert session.engine.estimate_close() - before == 4 * DROPPED_COST
    session.engine.close()
    session.engine.close()
    assert len(session.tensors) == 0
    assert len(session.transfers) == 0
    ((_, slot),) = session.outbox.fetches
    assert (session.quota.bytes, session.quota.tensors, session.quota.held) == (0, 0, 8)
    slot.fail(OperationFailed("the session ended"))
    assert session.quota.held == 0


def test_closing_costs_time_for_the_steps_of_graphs(session: EngineSession) -> None:
    before = session.engine.estimate_close()
    steps = tuple((1, slot) for slot in range(1000))
    session.run(DefineGraph(4096, 1, steps, (1000,)))
    assert session.engine.estimate_close() - before >= 200 * len(steps)


@pytest.mark.parametrize("tensor", [1, 77], ids=["present", "unknown"])
def test_objects_of_many_exposed_tensors_count_until_they_are_freed(tensor: int) -> None:
    session = EngineSession(max_bytes=FREE_OVERHEAD_BYTES)
    session.upload(1, 1, 2)
    secrets = [number.to_bytes(32, "big") for number in range(300)]
    session.run(*(Expose(tensor, vector(2), 1, secret, 60.0) for secret in secrets))
    exposed = len(session.transfers)
    assert EXPOSED_BYTES * exposed <= 2 * FREE_OVERHEAD_BYTES < EXPOSED_BYTES * (exposed + 2)
    assert {type(failure) for _, failure in session.outbox.failures} == {QuotaExceeded}
    assert len(session.outbox.failures) == len(secrets) - exposed
    session.engine.close()
    assert session.quota.held == 0


def test_an_array_that_arrives_after_the_close_is_not_kept(session: EngineSession) -> None:
    session.run(Fetch(SECRET, "burn://peer", 1, vector(2)))
    ((_, slot),) = session.outbox.fetches
    session.engine.close()
    slot.complete(object())
    assert slot.array() is None


def test_an_interrupted_operation_fails_unless_it_has_stored_its_outputs(
    session: EngineSession,
) -> None:
    session.upload(1, 1, 2)
    assert session.engine.fail_interrupted((1, 1, 2))
    ((tensors, failure),) = session.outbox.failures
    assert (tensors, failure.reason) == ((2,), "it was interrupted")
    session.run((1, 1, 3))
    assert session.engine.fail_interrupted((1, 1, 3))
    assert session.values(3, size=2) == [-1, -2]
    assert not session.engine.fail_interrupted((-3, (1,)))
    assert isinstance(failure, OperationFailed)
