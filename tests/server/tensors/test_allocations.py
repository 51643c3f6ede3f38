"""Memory counts once in the quota, for as long as anything references it."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import QuotaExceeded, SessionLost
from burn_remote_protocol.interrupted_finalizers import install
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.access.quota import FREE_OVERHEAD_BYTES, OverheadAccount, Pool, Quota
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.execution.interpreter import Interpreter
from burn_remote_server.tensors.allocations import _Lent
from burn_remote_server.tensors.tensor_table import TensorTable
from support.kernels import signature
from support.link_ends import in_thread
from support.specs import f32
from support.waiting import PATIENCE_SECONDS

SIZE = 64


class Holder:
    """An object outside the table that references an array, as an exposed tensor does."""

    def __init__(self, array: Any) -> None:
        self.array = array


def table_of(max_bytes: int, pool: Pool | None = None) -> tuple[TensorTable, Quota]:
    backend = NumpyBackend()
    quota = Quota(max_bytes, 1000, None, pool)
    return TensorTable(backend, backend.open_session(), quota), quota


def put(table: TensorTable, quota: Quota, tensor: int, array: Any, *inputs: Any) -> None:
    """Store an operation's result as the interpreter does."""
    quota.take(array.nbytes, 1)
    array = table.record(array, inputs)
    table.forget(tensor)
    table.arrays[tensor] = array


def put_several(
    table: TensorTable, quota: Quota, first: int, arrays: Sequence[Any], *inputs: Any
) -> None:
    """Store an operation's results as the interpreter does."""
    quota.take(sum(array.nbytes for array in arrays), len(arrays))
    arrays = [table.record(array, inputs) for array in arrays]
    for tensor, array in enumerate(arrays, first):
        table.forget(tensor)
        table.arrays[tensor] = array


def bytes_of(size: int) -> Any:
    return np.zeros(size, np.uint8)


def test_a_view_counts_its_own_elements_while_its_base_is_alive() -> None:
    table, quota = table_of(1000)
    table.store(1, bytes_of(400))
    put(table, quota, 2, table.arrays[1][:100], table.arrays[1])
    assert quota.total_bytes == 500


def test_a_view_counts_all_memory_that_it_keeps_alive_after_its_base_is_dropped() -> None:
    table, quota = table_of(1000)
    table.store(1, bytes_of(400))
    put(table, quota, 2, table.arrays[1][:100], table.arrays[1])
    put(table, quota, 3, table.arrays[2][:50], table.arrays[2])
    table.drop([1])
    assert quota.total_bytes == 400
    table.drop([2])
    assert quota.total_bytes == 400
    table.drop([3])
    assert (quota.total_bytes, quota.tensors) == (0, 0)


def test_views_that_cover_a_dropped_base_count_only_their_elements() -> None:
    table, quota = table_of(1000)
    table.store(1, bytes_of(300))
    base = table.arrays[1]
    for part in range(3):
        put(table, quota, 2 + part, base[100 * part : 100 * part + 100], base)
    del base
    table.drop([1])
    assert quota.total_bytes == 300


def test_memory_that_dropped_bases_leave_alive_is_refused_to_others() -> None:
    table, quota = table_of(1000)
    for tensor in (1, 2):
        table.store(tensor, bytes_of(400))
        put(table, quota, 10 + tensor, table.arrays[tensor][:10], table.arrays[tensor])
        table.drop([tensor])
    with pytest.raises(QuotaExceeded, match="1,100 would be held, 780 of them by views"):
        quota.take(300, 1)


def test_a_strided_window_counts_the_memory_behind_it() -> None:
    table, quota = table_of(1000)
    table.store(1, bytes_of(400))
    window = np.lib.stride_tricks.as_strided(table.arrays[1], (50, 2), (2, 1))
    put(table, quota, 2, window, table.arrays[1])
    table.drop([1])
    assert quota.total_bytes == 400


def test_a_result_that_keeps_more_than_it_shows_counts_all_or_is_copied() -> None:
    table, quota = table_of(1000)
    put(table, quota, 1, bytes_of(600)[:100])
    assert quota.total_bytes == 600
    put(table, quota, 2, bytes_of(600)[:100])
    assert quota.total_bytes == 700
    assert table.arrays[2].base is None


def test_one_array_under_two_ids_counts_until_both_are_dropped() -> None:
    table, quota = table_of(1000)
    table.store(1, bytes_of(400))
    put(table, quota, 2, table.arrays[1], table.arrays[1])
    table.drop([1])
    assert quota.total_bytes == 400
    table.drop([2])
    assert quota.total_bytes == 0


def test_an_exposed_tensor_counts_after_its_drop_until_nothing_refers_to_it() -> None:
    table, quota = table_of(1000)
    table.store(1, bytes_of(400))
    exposed = Holder(table.arrays[1])
    table.expose(1, exposed)
    assert quota.total_bytes == 400
    table.drop([1])
    assert (quota.total_bytes, quota.tensors) == (400, 0)
    del exposed
    assert quota.total_bytes == 0


def test_an_interrupt_while_a_reference_ends_reaches_the_program_and_is_counted_later() -> None:
    table, quota = table_of(1000)
    table.store(1, bytes_of(400))
    first, second = [Holder(table.arrays[1])], [Holder(table.arrays[1])]
    table.expose(1, first[0])
    table.expose(1, second[0])
    table.drop([1])
    before = sys.unraisablehook
    install()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_Lent, "held", interrupted)
            with pytest.raises(KeyboardInterrupt):
                first.clear()
    finally:
        sys.unraisablehook = before
    assert quota.total_bytes == 400
    second.clear()
    assert quota.total_bytes == 0


def interrupted(*_: object) -> int:
    raise KeyboardInterrupt


def test_an_exposed_view_counts_the_memory_behind_it() -> None:
    table, quota = table_of(1000)
    table.store(1, bytes_of(400))
    put(table, quota, 2, table.arrays[1][:100], table.arrays[1])
    exposed = Holder(table.arrays[2])
    table.expose(2, exposed)
    table.drop([2, 1])
    assert quota.total_bytes == 400
    del exposed
    assert quota.total_bytes == 0


def test_a_tensor_that_comes_back_to_its_own_session_counts_once_its_source_is_dropped() -> None:
    table, quota = table_of(1000)
    table.store(1, bytes_of(400))
    exposed = Holder(table.arrays[1])
    table.expose(1, exposed)
    array = exposed.array
    del exposed
    table.store(2, array)
    del array
    put(table, quota, 3, table.arrays[2][:100], table.arrays[2])
    table.drop([1, 2])
    assert quota.total_bytes == 400


def test_an_answer_in_transit_counts_the_dropped_tensor_it_shows() -> None:
    table, quota = table_of(10**6)
    backend = NumpyBackend()
    spec = TensorSpec((1000,), F32)
    table.store(1, np.zeros(1000, np.float32))
    elements = backend.to_bytes(table.arrays[1], F32)
    table.hold_reply(1, elements)
    assert quota.total_bytes == spec.nbytes
    table.drop([1])
    chunk = elements[:10]
    del elements
    assert quota.total_bytes == spec.nbytes
    del chunk
    assert quota.total_bytes == 0


def test_an_answer_that_is_a_copy_counts_beside_its_tensor_and_may_be_refused() -> None:
    table, quota = table_of(10_000)
    backend = NumpyBackend()
    table.store(1, np.zeros((50, 25), np.float32).T)
    elements = backend.to_bytes(table.arrays[1], F32)
    table.hold_reply(1, elements)
    assert quota.total_bytes == 10_000
    with pytest.raises(QuotaExceeded):
        table.hold_reply(1, backend.to_bytes(table.arrays[1], F32))
    del elements
    assert quota.total_bytes == 5000


def test_memory_still_referenced_after_a_session_counts_until_it_is_freed() -> None:
    pool = Pool(10**6)
    table, quota = table_of(10**6, pool)
    table.store(1, bytes_of(4000))
    exposed = Holder(table.arrays[1])
    table.expose(1, exposed)
    table.clear()
    quota.end()
    assert pool.taken == 4000
    del exposed
    assert pool.taken == 0


def test_references_that_end_in_other_threads_are_all_counted() -> None:
    pool = Pool(10**9)
    table, quota = table_of(10**9, pool)
    ending: queue.SimpleQueue[Holder | None] = queue.SimpleQueue()

    def end() -> None:
        while ending.get() is not None:
            pass

    threads = [threading.Thread(target=end) for _ in range(3)]
    for thread in threads:
        thread.start()
    for tensor in range(900):
        table.store(tensor, bytes_of(100))
        holder = Holder(table.arrays[tensor])
        table.expose(tensor, holder)
        ending.put(holder)
        del holder
        put(table, quota, 10_000 + tensor, table.arrays[tensor][:10], table.arrays[tensor])
        table.drop([tensor])
    for _ in threads:
        ending.put(None)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert quota.total_bytes == 900 * 100
    table.clear()
    quota.end()
    assert pool.taken == 0


def test_frames_beyond_the_free_bytes_count_until_they_are_gone() -> None:
    quota = Quota(1000, 10)
    account = OverheadAccount(quota)
    account.add(FREE_OVERHEAD_BYTES)
    assert quota.total_bytes == 0
    account.add(900)
    assert quota.total_bytes == 900
    with pytest.raises(QuotaExceeded):
        account.add(101)
    account.remove(FREE_OVERHEAD_BYTES)
    assert quota.total_bytes == 0


def test_large_signatures_count_until_they_are_replaced() -> None:
    quota = Quota(3 * 2**20, 10)
    interpreter = Interpreter(NumpyBackend(), quota, lambda tensors, error: None)
    large = [
        signature("Base.Cat", tuple(f32(1, width) for _ in range(4000)), dim=0)
        for width in (1, 2, 3)
    ]
    interpreter.plans.define(1, large[0])
    counted = quota.held
    assert counted > 2**19
    interpreter.plans.define(1, large[1])
    assert quota.held == counted
    interpreter.plans.define(2, large[0])
    with pytest.raises(SessionLost, match=r"large signature .* raise max_session_bytes"):
        interpreter.plans.define(3, large[2])
    interpreter.clear()
    assert quota.held == 0


@dataclass(eq=False)
class Memory:
    """An allocation in the model."""

    size: int


class Sharing(RuleBasedStateMachine):
    """Compares the bytes counted for random views, drops and exposes with a model."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(10**6)
        self.table, self.quota = table_of(10**6, self.pool)
        self.memory: dict[int, Memory] = {}
        self.holders: list[tuple[Holder, Memory]] = []
        self.next = 0

    def _new(self, array: Any, memory: Memory, *inputs: Any) -> None:
        put(self.table, self.quota, self.next, array, *inputs)
        self.memory[self.next] = memory
        self.next += 1

    @rule(size=st.integers(1, SIZE))
    def compute(self, size: int) -> None:
        self._new(bytes_of(size), Memory(size))

    @rule(size=st.integers(1, SIZE), shown=st.integers(1, SIZE))
    def compute_part(self, size: int, shown: int) -> None:
        self._new(bytes_of(size)[:shown], Memory(size))

    @precondition(lambda self: self.memory)
    @rule(data=st.data(), first=st.integers(0, SIZE), step=st.sampled_from([1, 2, -1]))
    def view(self, data: st.DataObject, first: int, step: int) -> None:
        tensor = data.draw(st.sampled_from([*self.memory]))
        array = self.table.arrays[tensor]
        self._new(array[first::step], self.memory[tensor], array)

    @precondition(lambda self: self.memory)
    @rule(data=st.data(), parts=st.integers(1, 3))
    def split(self, data: st.DataObject, parts: int) -> None:
        tensor = data.draw(st.sampled_from([*self.memory]))
        array = self.table.arrays[tensor]
        put_several(self.table, self.quota, self.next, np.array_split(array, parts), array)
        for _ in range(parts):
            self.memory[self.next] = self.memory[tensor]
            self.next += 1

    @precondition(lambda self: self.memory)
    @rule(data=st.data(), first=st.integers(0, SIZE))
    def view_under_its_own_id(self, data: st.DataObject, first: int) -> None:
        tensor = data.draw(st.sampled_from([*self.memory]))
        array = self.table.arrays[tensor]
        put(self.table, self.quota, tensor, array[first:], array)

    @precondition(lambda self: self.memory)
    @rule(data=st.data(), times=st.integers(1, 3))
    def expand(self, data: st.DataObject, times: int) -> None:
        tensor = data.draw(st.sampled_from([*self.memory]))
        array = self.table.arrays[tensor]
        expanded = np.broadcast_to(array, (times, *array.shape))
        self._new(expanded, self.memory[tensor], array)

    @precondition(lambda self: self.memory)
    @rule(data=st.data())
    def alias(self, data: st.DataObject) -> None:
        tensor = data.draw(st.sampled_from([*self.memory]))
        array = self.table.arrays[tensor]
        self._new(array, self.memory[tensor], array)

    @precondition(lambda self: self.memory)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        tensor = data.draw(st.sampled_from([*self.memory]))
        self.table.drop([tensor])
        del self.memory[tensor]

    @precondition(lambda self: self.memory)
    @rule(data=st.data())
    def expose(self, data: st.DataObject) -> None:
        tensor = data.draw(st.sampled_from([*self.memory]))
        holder = Holder(self.table.arrays[tensor])
        self.table.expose(tensor, holder)
        self.holders.append((holder, self.memory[tensor]))

    @precondition(lambda self: self.holders)
    @rule(place=st.integers(0, 100))
    def let_go(self, place: int) -> None:
        del self.holders[place % len(self.holders)]

    @invariant()
    def counts_the_larger_of_what_is_shown_and_what_is_alive(self) -> None:
        shown: dict[Memory, int] = {}
        for tensor, memory in self.memory.items():
            shown[memory] = shown.get(memory, 0) + self.table.arrays[tensor].nbytes
        for _, memory in self.holders:
            shown.setdefault(memory, 0)
        expected = sum(max(memory.size, count) for memory, count in shown.items())
        assert self.quota.total_bytes == expected
        assert self.quota.tensors == len(self.memory)
        assert expected <= self.pool.taken <= expected + 2 * self.pool.share

    def teardown(self) -> None:
        self.holders.clear()
        self.table.clear()
        self.quota.end()
        assert (self.quota.total_bytes, self.pool.taken) == (0, 0)


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


class InterruptedLock:
    """A lock that Ctrl-C interrupts directly after it was taken without waiting, once."""

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()
        self._is_due = True

    def acquire(self, *, blocking: bool) -> bool:
        is_taken = bool(self.lock.acquire(blocking=blocking))
        if self._is_due:
            self._is_due = False
            raise KeyboardInterrupt
        return is_taken

    def release(self) -> None:
        self.lock.release()

    def _is_owned(self) -> bool:
        return bool(self.lock._is_owned())


def test_ctrl_c_after_the_lock_was_taken_does_not_leave_it_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, quota = table_of(10_000)
    put(table, quota, 1, np.zeros(SIZE))
    holder = Holder(table.arrays[1])
    accounts = table.allocations
    accounts.lend(table.arrays[1], holder)
    interrupted = InterruptedLock()
    monkeypatch.setattr(accounts, "_lock", interrupted)
    key = id(table.arrays[1])
    with pytest.raises(KeyboardInterrupt):
        accounts._end(key)
    assert in_thread(interrupted.lock.acquire, False).result(PATIENCE_SECONDS)


# The finalizer may fail after it has counted; then its weak reference stays registered.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("failing", range(30))
def test_the_end_of_a_loan_counts_although_an_allocation_fails(
    failing: int, allocations: Any
) -> None:
    table, quota = table_of(2**30)
    put(table, quota, 1, bytes_of(SIZE))
    holder = Holder(table.arrays[1])
    table.allocations.lend(table.arrays[1], holder)
    table.drop([1])
    assert quota.held == SIZE
    allocations.set_nomemory(failing, failing + 1)
    try:
        del holder
    finally:
        allocations.remove_mem_hooks()
    assert (quota.held, len(table.allocations.lent)) == (0, 0)
