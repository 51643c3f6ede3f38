"""Frames are sent in order; a drop is merged with a last use that is still queued."""

from __future__ import annotations

from typing import Any

import pytest

from burn_remote.sessions.burn.burn_version_differences import Burn021
from burn_remote.sessions.burn.outgoing_queue import Outgoing
from burn_remote_protocol.dialects.burn_0_21 import decode_tasks
from burn_remote_protocol.dtypes import BOOL, BOOL_U8, BOOL_U32, F32
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.messages import Drop, Expose, Read, Seed, Upload
from burn_remote_protocol.operations.families import base, numeric
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.operations.table import sign
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorData, TensorSpec, TensorStatus

SPEC = TensorSpec((2,), F32)
IN = TensorUse(SPEC, TensorStatus.READ_ONLY)
OUT = IN._replace(status=TensorStatus.NOT_INIT)
ADD = sign(numeric.ADD, IN, IN, OUT)
DATA = TensorData(bytes(8), (2,), F32)


@pytest.fixture
def outgoing() -> Outgoing:
    """An empty queue of a session whose tensors 1 and 2 exist on the server."""
    made = Outgoing(Burn021())
    for tensor in (1, 2):
        made.upload(tensor, DATA)
    made.take().clear()
    return made


def taken(outgoing: Outgoing) -> list[Any]:
    """Return the tasks that the queue sends now, in order."""
    frames = outgoing.take()
    tasks = [task for frame in frames for task in decode_tasks(frame)]
    frames.clear()
    return tasks


def statuses(operation: Any) -> list[str]:
    assert isinstance(operation, Operation)
    return [use.status.value for use in operation.signature.input_uses]


def test_operations_are_sent_in_order_with_their_ids(outgoing: Outgoing) -> None:
    outgoing.operation(ADD, [1, 2, 3])
    outgoing.task(Seed(5))
    outgoing.operation(ADD, [3, 1, 4])
    first, seed, second = taken(outgoing)
    assert (first.tensors, seed, second.tensors) == ((1, 2, 3), Seed(5), (3, 1, 4))
    assert statuses(first) == ["ReadOnly", "ReadOnly"]
    assert len(outgoing) == 0


def test_a_tensor_dropped_before_its_use_is_sent_is_freed_with_that_use(outgoing: Outgoing) -> None:
    outgoing.operation(ADD, [1, 2, 3])
    outgoing.operation(ADD, [1, 2, 4])
    outgoing.drop(1)
    first, second = taken(outgoing)
    assert (statuses(first), statuses(second)) == (["ReadOnly"] * 2, ["ReadWrite", "ReadOnly"])


def test_a_tensor_used_twice_in_one_operation_is_freed_with_the_second_use(
    outgoing: Outgoing,
) -> None:
    outgoing.operation(ADD, [1, 1, 3])
    outgoing.drop(1)
    (operation,) = taken(outgoing)
    assert statuses(operation) == ["ReadOnly", "ReadWrite"]


def test_a_tensor_whose_last_use_was_sent_is_dropped_by_a_separate_task(
    outgoing: Outgoing,
) -> None:
    outgoing.operation(ADD, [1, 2, 3])
    outgoing.take().clear()
    outgoing.drop(1)
    (drop,) = taken(outgoing)
    assert (drop.signature.row.name, drop.tensors) == ("Drop", (1,))


@pytest.mark.parametrize("ask", [Read, Expose])
def test_a_read_or_an_expose_may_be_the_last_use(ask: type[Any], outgoing: Outgoing) -> None:
    outgoing.operation(ADD, [1, 2, 3])
    request = outgoing.next_request()
    question = Read(request, 1, SPEC) if ask is Read else Expose(1, SPEC, 1, 2**63, 5.0)
    outgoing.add_request(question, request)
    outgoing.drop(1)
    operation, asked, drop = taken(outgoing)
    assert statuses(operation) == ["ReadOnly", "ReadOnly"]
    assert isinstance(asked, ask)
    assert drop == Drop((1,))


def test_drops_precede_the_next_task_that_makes_a_tensor(outgoing: Outgoing) -> None:
    outgoing.drop(1)  # its last use was sent before
    outgoing.operation(ADD, [2, 2, 3])
    outgoing.drop(3)  # never used
    outgoing.upload(4, DATA)
    outgoing.operation(ADD, [2, 2, 5])
    outgoing.drop(5)
    request = outgoing.next_request()
    outgoing.add_request(Read(request, 4, SPEC), request)
    names = [
        f"drop {task.tensors[0]}"
        if isinstance(task, Operation) and task.signature.row.family == "Drop"
        else type(task).__name__
        for task in taken(outgoing)
    ]
    # The last reply does not wait for a drop.
    assert names == ["drop 1", "Operation", "drop 3", "Upload", "Operation", "Read", "drop 5"]


def test_a_tensor_that_the_server_never_had_is_not_dropped(outgoing: Outgoing) -> None:
    outgoing.drop(99)
    assert taken(outgoing) == []


def test_everything_is_freed_at_the_end(outgoing: Outgoing) -> None:
    outgoing.operation(ADD, [1, 2, 3])
    outgoing.drop(1)
    outgoing.take().clear()
    freed = [task.tensors for frame in outgoing.drops() for task in decode_tasks(frame)]  # type: ignore[union-attr]
    assert sorted(freed) == [(2,), (3,)]


def test_positions_never_repeat(outgoing: Outgoing) -> None:
    assert len({outgoing.next_request() for _ in range(5)}) == 5


@pytest.mark.parametrize("store", [BOOL, BOOL_U8, BOOL_U32])
def test_bools_are_encoded_as_the_server_stores_them(store: Any, outgoing: Outgoing) -> None:
    outgoing.bool_store = store
    outgoing.upload(5, TensorData(b"\1\0", (2,), BOOL))
    truth = TensorUse(TensorSpec((2,), BOOL), TensorStatus.NOT_INIT)
    outgoing.operation(sign(base.EQUAL, IN, IN, truth), [1, 2, 6])
    upload, equal = taken(outgoing)
    assert isinstance(upload, Upload)
    assert upload.data.dtype is store
    assert len(upload.data.bytes) == 2 * store.itemsize
    assert equal.signature.outputs == (TensorSpec((2,), store),)


def test_more_than_a_server_takes_in_one_message_is_refused(outgoing: Outgoing) -> None:
    size = 64 * 2**20
    for lacking in (100, 50):
        outgoing.upload(7, TensorData(bytes(size - 4 * lacking), (size // 4 - lacking,), F32))
    with pytest.raises(UsageError, match="67,108,864"):
        outgoing.upload(8, TensorData(bytes(size), (size // 4,), F32))
    assert all(len(frame) <= size for frame in outgoing.take())


def fill(outgoing: Outgoing) -> None:
    """Queue operations, a request and drops of both kinds."""
    outgoing.operation(ADD, [1, 2, 3])
    outgoing.operation(ADD, [3, 3, 4])
    request = outgoing.next_request()
    outgoing.add_request(Read(request, 4, SPEC), request)
    for tensor in (3, 4, 1, 3):
        outgoing.drop(tensor)
    outgoing.upload(5, DATA)
    outgoing.drop(5)


def test_a_queue_without_memory_loses_neither_tasks_nor_drops(
    outgoing: Outgoing, allocations: Any
) -> None:
    expected = Outgoing(Burn021())
    for tensor in (1, 2):
        expected.upload(tensor, DATA)
    expected.take().clear()
    is_over, failing = False, 1
    while not is_over:
        for queue in (expected, outgoing):
            queue.upload(1, DATA)
            queue.take().clear()
            fill(queue)
        allocations.set_nomemory(failing, failing + 1)
        try:
            outgoing.take()
            is_over = True
        except MemoryError:
            pass
        finally:
            allocations.remove_mem_hooks()
        assert [*outgoing.take()] == [*expected.take()], failing
        outgoing.take().clear()
        expected.take().clear()
        assert (outgoing._live, [*outgoing._dropped]) == (expected._live, [])
        failing += 1
    assert failing > 10


def test_frames_that_the_link_did_not_take_precede_the_next(outgoing: Outgoing) -> None:
    outgoing.operation(ADD, [1, 2, 3])
    (first,) = [*outgoing.take()]
    outgoing.task(Seed(5))
    assert len(outgoing) == 2
    frames = outgoing.take()
    assert frames[0] == first
    assert [task for frame in frames[1:] for task in decode_tasks(frame)] == [Seed(5)]
