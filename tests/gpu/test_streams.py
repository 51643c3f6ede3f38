"""Sessions of one GPU run concurrently and never see each other's unfinished results."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.tensors import Slice, TensorData, TensorSpec
from burn_remote_server.backends import Backend, BackendSession
from support.kernels import signature

pytestmark = pytest.mark.gpu

F32 = DType.from_wire("F32")
SIDE = 4096
SQUARE = TensorSpec((SIDE, SIDE), F32)


def never() -> Any:
    raise AssertionError("the result is there already")


def uploaded(gpu: Backend, session: BackendSession, array: Any) -> Any:
    return session.adopt(gpu.to_device(TensorData(array.tobytes(), array.shape, F32)))


def busy(session: BackendSession, x: Any, steps: int = 40) -> Any:
    """Multiply x by the identity many times: some 100 ms of queued work."""
    multiply = session.bind(signature("Float.Matmul", SQUARE, SQUARE))
    result = x
    for _ in range(steps):
        result = multiply(result, x)
    return result


def test_an_unfinished_tensor_is_moved_with_its_final_elements(gpu: Backend) -> None:
    first, second = gpu.open_session(), gpu.open_session()
    first.activate()
    result = busy(first, uploaded(gpu, first, np.eye(SIDE, dtype=np.float32)))
    shared = first.share(result)
    del result

    second.activate()
    taken = second.adopt(shared)
    del shared
    doubled = second.bind(signature("Numeric.Add", SQUARE, SQUARE))(taken, taken)
    del taken
    # The first session's memory is reused and overwritten.
    first.activate()
    for _ in range(8):
        busy(first, uploaded(gpu, first, np.zeros((SIDE, SIDE), np.float32)), 1)
    second.activate()
    gpu.sync()
    seen = np.frombuffer(gpu.to_bytes(doubled, F32), np.float32).reshape(SIDE, SIDE)
    np.testing.assert_array_equal(seen, 2 * np.eye(SIDE, dtype=np.float32))


def test_a_tensor_in_use_elsewhere_outlives_its_session(gpu: Backend) -> None:
    first, second = gpu.open_session(), gpu.open_session()
    second.activate()
    waiting = busy(second, uploaded(gpu, second, np.eye(SIDE, dtype=np.float32)))
    first.activate()
    shared = first.share(uploaded(gpu, first, np.ones((SIDE, SIDE), np.float32)))

    second.activate()
    taken = second.adopt(shared)
    del shared
    # Runs after a long queue; until then the array's memory must not be reused.
    total = second.bind(signature("Numeric.Add", SQUARE, SQUARE))(taken, waiting)
    del taken
    first.activate()
    overwriting = [uploaded(gpu, first, np.zeros((SIDE, SIDE), np.float32)) for _ in range(8)]
    second.activate()
    seen = np.frombuffer(gpu.to_bytes(total, F32), np.float32).reshape(SIDE, SIDE)
    np.testing.assert_array_equal(seen, 1 + np.eye(SIDE, dtype=np.float32))
    assert len(overwriting) == 8


def test_a_read_of_unfinished_work_is_delivered_later(gpu: Backend) -> None:
    session = gpu.open_session()
    session.activate()
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    result = busy(session, uploaded(gpu, session, np.eye(SIDE, dtype=np.float32)), 100)

    assert session.read(result, F32, lambda: answers.put) is None
    del result

    answer = answers.get(timeout=5)
    seen = np.frombuffer(answer, np.float32).reshape(SIDE, SIDE)
    np.testing.assert_array_equal(seen, np.eye(SIDE, dtype=np.float32))


def test_a_read_of_finished_work_is_delivered_at_once(
    gpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("burn_remote_server.backends.cupy.host_copies.PATIENCE_SECONDS", 5.0)
    session = gpu.open_session()
    session.activate()
    array = uploaded(gpu, session, np.arange(4, dtype=np.float32))
    gpu.sync()

    answer = session.read(array, F32, never)

    assert answer is not None
    assert np.frombuffer(answer, np.float32).tolist() == [0, 1, 2, 3]


def test_a_sync_completes_when_the_work_is_done(gpu: Backend) -> None:
    session = gpu.open_session()
    session.activate()
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    result = busy(session, uploaded(gpu, session, np.eye(SIDE, dtype=np.float32)), 100)

    assert not session.synced(lambda: answers.put)

    assert answers.get(timeout=5) is None
    assert result.shape == (SIDE, SIDE)


def test_memory_is_returned_to_the_system(gpu: Backend) -> None:
    session = gpu.open_session()
    session.activate()
    array = uploaded(gpu, session, np.zeros(2**24, np.float32))
    used = gpu.memory().used
    del array
    session.activate()
    gpu.memory_cleanup()

    after = gpu.memory()
    assert after.used <= used - 2**26
    assert after.cached < 2**26


def test_long_lived_memory_has_its_own_pool(gpu: Backend) -> None:
    session = gpu.open_session()
    session.activate()
    ones = session.bind(signature("Base.Ones", out=TensorSpec((2**20,), F32)))
    gpu.memory_cleanup()
    with gpu.memory_persistent_allocations():
        weights = ones()
    passing = ones()
    assert gpu.memory().used >= 2 * 2**22
    distance = abs(int(weights.data.ptr) - int(passing.data.ptr))
    assert distance >= 2**22
    assert weights.data.mem is not passing.data.mem


def test_streams_are_reused(gpu: Backend) -> None:
    first = gpu.open_session()
    first.activate()
    first.close()
    second = gpu.open_session()
    second.activate()
    streams = pytest.importorskip("cupy").cuda
    stream = streams.get_current_stream()
    second.close()
    third = gpu.open_session()
    third.activate()
    assert streams.get_current_stream() == stream
    third.close()


def test_large_slices_and_views_share_memory_and_small_slices_do_not(gpu: Backend) -> None:
    session = gpu.open_session()
    session.activate()
    spec = TensorSpec((1000,), F32)
    array = uploaded(gpu, session, np.arange(1000, dtype=np.float32))
    half = session.bind(signature("Base.Slice", spec, ranges=(Slice(0, 500, 1),)))(array)
    part = session.bind(
        signature("Base.Slice", TensorSpec((500,), F32), ranges=(Slice(0, 200, 1),))
    )(half)

    assert half.data.ptr == array.data.ptr
    assert part.data.ptr != array.data.ptr


def test_operations_after_uploads_and_captures_run_on_the_streams_of_their_sessions(
    gpu: Backend,
) -> None:
    import cupy

    session = gpu.open_session()
    session.activate()
    own = cupy.cuda.get_current_stream()
    assert own != cupy.cuda.Stream.null
    array = np.ones((2, 2), np.float32)
    x = uploaded(gpu, session, array)
    assert cupy.cuda.get_current_stream() == own
    gpu.to_bytes(session.share(x), F32)
    assert cupy.cuda.get_current_stream() == own
    square = TensorSpec((2, 2), F32)
    multiply = session.bind(signature("Float.Matmul", square, square))
    captured = session.capture(lambda inputs, _: [multiply(*inputs)], [x, x], [])
    assert cupy.cuda.get_current_stream() == own
    (product,) = captured.launch([x, x], []) or [None]
    assert gpu.to_bytes(product, F32).tobytes() == (array @ array).tobytes()
    gpu.open_session()
    assert cupy.cuda.get_current_stream() == own


def test_a_session_that_is_closed_twice_gives_its_stream_back_once(gpu: Backend) -> None:
    cuda = pytest.importorskip("cupy").cuda
    first = gpu.open_session()
    first.close()
    first.close()
    streams = []
    for _ in range(2):
        gpu.open_session().activate()
        streams.append(cuda.get_current_stream())
    assert streams[0] != streams[1]


def test_a_session_has_no_generator_until_it_draws_numbers(gpu: Backend) -> None:
    # Seeding runs in any thread, where the stream of another session may be the current one.
    used = gpu.memory().used
    session = gpu.open_session()
    session.seed(3)
    assert gpu.memory().used == used
    session.activate()
    spec = TensorSpec((4,), F32)
    draw = session.bind(signature("Float.Random", out=spec, distribution=("Default",)))
    first = bytes(gpu.to_bytes(draw(), F32))
    session.seed(3)
    assert bytes(gpu.to_bytes(draw(), F32)) == first
