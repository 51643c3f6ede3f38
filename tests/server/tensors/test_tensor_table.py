"""The table of a session's tensors counts each tensor once and frees it when it is dropped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import BOOL_U32, F32, I64
from burn_remote_protocol.errors import (
    DeviceLost,
    OperationFailed,
    OutOfMemory,
    ProtocolViolation,
    QuotaExceeded,
    TransferFailed,
    UnknownTensor,
)
from burn_remote_protocol.messages import Define, Upload
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.access.quota import Quota
from burn_remote_server.backends.interface import Backend
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.tensors.slots import InFlight
from burn_remote_server.tensors.tensor_table import TensorTable
from support.engines import EngineSession, vector
from support.kernels import signature


class Table:
    """A table and its quota."""

    def __init__(
        self, max_bytes: int = 1000, max_tensors: int = 5, backend: Backend | None = None
    ) -> None:
        self.backend = NumpyBackend() if backend is None else backend
        self.quota = Quota(max_bytes, max_tensors)
        session = self.backend.open_session()
        self.tensors = TensorTable(self.backend, session, self.quota, max_fetches=3)

    @property
    def counted(self) -> tuple[int, int]:
        return self.quota.total_bytes, self.quota.tensors


def array(size: int = 2) -> Any:
    return np.arange(size, dtype=np.float32)


def in_flight(size: int = 2) -> InFlight:
    return InFlight(vector(size))


def test_an_array_counts_until_it_is_dropped() -> None:
    table = Table()
    table.tensors.store(1, array())
    assert table.counted == (8, 1)
    assert table.tensors.array(1).tolist() == [0, 1]
    table.tensors.drop((1,))
    assert table.counted == (0, 0)
    assert len(table.tensors) == 0


def test_dropping_unknown_or_dropped_tensors_does_nothing() -> None:
    table = Table()
    table.tensors.store(1, array())
    table.tensors.drop((1, 1, 2, 3))
    assert table.counted == (0, 0)


def test_storing_under_an_id_frees_the_previous_tensor() -> None:
    table = Table()
    table.tensors.store(1, array(10))
    table.tensors.store(1, array(2))
    assert table.counted == (8, 1)
    table.tensors.store_failure((1,), OperationFailed("failed"))
    assert table.counted == (0, 0)
    table.tensors.store(1, array(2))
    assert not table.tensors.has_slots()
    assert table.counted == (8, 1)


def test_an_array_beyond_the_quota_is_refused_and_counts_nothing() -> None:
    table = Table(max_bytes=40)
    with pytest.raises(QuotaExceeded):
        table.tensors.store(1, array(11))
    assert table.counted == (0, 0)
    assert len(table.tensors) == 0


def test_a_failure_beyond_the_number_of_tensors_is_read_as_a_refusal() -> None:
    table = Table(max_tensors=2)
    table.tensors.store_failure((1, 2), OperationFailed("failed"))
    table.tensors.pass_failure((3,), OperationFailed("failed"))
    assert len(table.tensors) == 2
    with pytest.raises(OperationFailed, match="failed"):
        table.tensors.array(2)
    with pytest.raises(QuotaExceeded, match=r"3 would be held, .* raise max_session_tensors"):
        table.tensors.array(3)


def test_a_failure_is_raised_as_it_was_stored() -> None:
    table = Table()
    failure = QuotaExceeded("full", operation="Numeric.Add", tensor=1)
    table.tensors.store_failure((1,), failure)
    for _ in range(2):
        with pytest.raises(QuotaExceeded) as raised:
            table.tensors.array(1)
        assert raised.value is failure
    assert table.tensors.slot(1) is failure


def test_an_unknown_tensor_is_named() -> None:
    with pytest.raises(UnknownTensor, match="no tensor 7"):
        Table().tensors.array(7)


def test_a_read_checks_the_shape() -> None:
    table = Table()
    table.tensors.store(1, array())
    assert table.tensors.read(1, vector(2)) is table.tensors.arrays[1]
    with pytest.raises(UnknownTensor, match=r"shape \[2\], not \[1, 2\]"):
        table.tensors.read(1, TensorSpec((1, 2), F32))


# -- uploads --------------------------------------------------------------------------------------


def test_an_upload_counts_from_its_beginning_and_becomes_an_array() -> None:
    table = Table()
    slot = table.tensors.begin_upload(1, vector(3), 12)
    assert table.counted == (12, 1)
    table.backend.write(slot.upload, 0, array(3).tobytes())
    table.tensors.finish_upload(1, slot)
    assert table.tensors.array(1).tolist() == [0, 1, 2]
    assert table.counted == (12, 1)
    table.tensors.drop((1,))
    assert table.counted == (0, 0)


def test_bools_count_a_byte_each_however_wide_they_are_on_the_wire() -> None:
    table = Table()
    table.tensors.begin_upload(1, TensorSpec((3,), BOOL_U32), 12)
    assert table.counted == (3, 1)
    table.tensors.drop((1,))
    assert table.counted == (0, 0)


def test_an_unfinished_upload_cannot_be_used() -> None:
    table = Table()
    table.tensors.begin_upload(1, vector(3), 12)
    with pytest.raises(UnknownTensor, match="still being uploaded: 0 of 12 bytes"):
        table.tensors.array(1)


def test_a_byte_count_of_another_shape_is_a_violation_and_counts_nothing() -> None:
    table = Table()
    with pytest.raises(ProtocolViolation, match="12 bytes, not 13"):
        table.tensors.begin_upload(1, vector(3), 13)
    assert table.counted == (0, 0)


@pytest.mark.parametrize(
    ("raised", "seen"), [(MemoryError(), OutOfMemory), (DeviceLost("lost"), DeviceLost)]
)
def test_an_upload_without_memory_counts_nothing(raised: Exception, seen: type[Exception]) -> None:
    class Failing(NumpyBackend):
        def empty(self, spec: TensorSpec) -> Any:
            raise raised

    table = Table(backend=Failing())
    with pytest.raises(seen):
        table.tensors.begin_upload(1, vector(3), 12)
    assert table.counted == (0, 0)
    assert len(table.tensors) == 0


def test_chunks_may_follow_only_a_refused_or_dropped_upload() -> None:
    table = Table()
    table.tensors.store(1, array())
    table.tensors.begin_upload(2, vector(3), 12)
    table.tensors.drop((2,))
    assert not table.tensors.refused_upload(1)
    assert table.tensors.refused_upload(2)


# -- fetches --------------------------------------------------------------------------------------


def test_a_fetched_array_replaces_its_slot() -> None:
    table, slot = Table(), in_flight()
    table.tensors.begin_fetch(1, slot)
    assert table.tensors.has_slots()
    slot.complete(array())
    assert table.tensors.array(1).tolist() == [0, 1]
    assert not table.tensors.has_slots()
    assert table.counted == (8, 1)
    table.tensors.drop((1,))
    assert table.counted == (0, 0)


def test_await_arrivals_waits_for_all_fetches_and_keeps_their_failures() -> None:
    table, first, second = Table(), in_flight(), in_flight()
    table.tensors.begin_fetch(1, first)
    table.tensors.begin_fetch(2, second)
    first.complete(array())
    second.fail(TransferFailed("the peer is gone"))
    table.tensors.await_arrivals()
    assert list(table.tensors.arrays) == [1]
    assert isinstance(table.tensors.slot(2), TransferFailed)
    assert table.counted == (8, 1)


def test_a_fetch_dropped_in_flight_counts_until_it_has_arrived() -> None:
    table, slot = Table(), in_flight()
    table.tensors.begin_fetch(1, slot)
    table.tensors.drop((1,))
    assert table.counted == (8, 0)
    slot.complete(array())
    assert table.counted == (0, 0)


# -- the end --------------------------------------------------------------------------------------


def test_clearing_frees_arrays_uploads_fetches_and_failures() -> None:
    table, slot = Table(), in_flight()
    table.tensors.store(1, array())
    table.tensors.begin_upload(2, vector(3), 12)
    table.tensors.begin_fetch(3, slot)
    table.tensors.store_failure((4,), OperationFailed("failed"))
    assert len(table.tensors) == 4
    table.tensors.clear()
    assert len(table.tensors) == 0
    assert table.counted == (8, 0)
    slot.complete(array())
    assert slot.array() is None
    assert table.counted == (0, 0)


def test_no_tensor_of_a_lost_device_is_read() -> None:
    table = Table()
    table.tensors.store(1, array())
    table.tensors.lost = DeviceLost("the GPU has fallen off the bus")
    with pytest.raises(DeviceLost, match="fallen off"):
        table.tensors.read(1, vector(2))
    with pytest.raises(DeviceLost, match="fallen off"):
        table.tensors.await_arrivals()
    table.tensors.drop((1,))
    assert table.counted == (0, 0)


def test_a_tensor_that_failed_before_the_device_was_lost_still_raises_its_own_failure() -> None:
    session = EngineSession()
    session.upload(1, 1, 2)
    places = TensorData(np.array([0, 9]).tobytes(), (2,), I64)
    select = signature("Base.Select", vector(2), TensorSpec((2,), I64), dim=0)
    session.run(Define(0, select), Upload(2, places), (0, 1, 2, 3))
    session.interpreter.lose("the device is lost")
    with pytest.raises(OperationFailed, match=r"Base\.Select"):
        session.values(3, size=2)
    with pytest.raises(DeviceLost):
        session.values(1, size=2)
