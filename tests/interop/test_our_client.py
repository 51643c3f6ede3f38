"""This project's client uses servers built from Burn's crates like its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

import burn_remote as br
import burn_remote.functional as F
from burn_remote_protocol.dtypes import BOOL, BOOL_U8
from support.burn_programs import burn_server
from support.servers import RunningServer, server

pytestmark = pytest.mark.interop

RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 4)).astype(np.float32)
Y = RNG.standard_normal((6, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def real() -> Iterator[str]:
    with burn_server() as address:
        yield address


@pytest.fixture(scope="module")
def another_real() -> Iterator[str]:
    with burn_server() as address:
        yield address


@pytest.fixture(scope="module")
def ours() -> Iterator[RunningServer]:
    with server() as running:
        yield running


@pytest.fixture
def theirs(real: str) -> Iterator[br.Device]:
    """A session on a real server, whose dialect is detected."""
    with br.RemoteDevice(real) as device:
        yield device


@pytest.fixture
def doomed() -> Iterator[br.Device]:
    """A session on a separate real server, which the test crashes."""
    with burn_server() as address, br.RemoteDevice(address) as device:
        yield device


def test_the_dialect_is_detected(theirs: br.Device, ours: RunningServer) -> None:
    assert theirs.info == {"dialect": "burn-0.21"}
    with br.RemoteDevice(ours.address) as native:
        assert "dialect" not in native.info


def test_a_real_server_ignores_a_token(real: str) -> None:
    with br.RemoteDevice(real, token="x" * 32) as device:
        assert br.ones((3,), device=device).sum().item() == 3


@pytest.mark.parametrize("dialect", ["native", "klingon"])
def test_a_dialect_that_the_server_does_not_support_is_named_in_the_error(
    dialect: str, real: str
) -> None:
    with pytest.raises(br.BurnRemoteError, match=r"404|klingon"):
        br.RemoteDevice(real, dialect=dialect)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, y: x + y * 2 - x / y,
        lambda x, y: x @ y.mT,
        lambda x, y: (x > y) & (x > 0),
        lambda x, y: x.argmax(axis=1),
        lambda x, y: x.max(axis=0),
        lambda x, y: x.sum() + y.mean(axis=1, keepdims=True),
        lambda x, y: x.softmax(axis=-1).log(),
        lambda x, y: br.where(x > y, x, y),
        lambda x, y: x[1:5:2, [0, 2]],
        lambda x, y: br.concat([x, y], axis=1),
        lambda x, y: x.reshape((3, 8)).mT,
        lambda x, y: F.layer_norm(x, (4,)),
        lambda x, y: x.astype(br.float16).astype(br.float32),
        lambda x, y: x.cumulative_sum(axis=0),
        lambda x, y: x + br.tensor([1.0, 2.0, 3.0, 4.0], device=x.device),
    ],
)
def test_results_match_those_of_our_own_server(
    compute: object, theirs: br.Device, ours: RunningServer
) -> None:
    with br.RemoteDevice(ours.address) as native:
        results = []
        for device in (theirs, native):
            tensors = br.tensor(X, device=device), br.tensor(Y, device=device)
            results.append(compute(*tensors).numpy())  # type: ignore[operator]
    there, here = results
    assert there.dtype == here.dtype
    np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-5)


def train(device: br.Device, steps: int = 30) -> list[float]:
    """Fit a line with hand-written gradients; return the losses."""
    x = br.tensor(X, device=device)
    target = br.tensor(X @ np.array([[1.0], [-2.0], [3.0], [0.5]], np.float32), device=device)
    weights = br.zeros((4, 1), device=device)
    losses = []
    for _ in range(steps):
        error = x @ weights - target
        losses.append((error * error).mean())
        weights = weights - 0.2 * (x.mT @ error) / len(X)
    return [float(loss) for loss in losses]


def test_training_gives_the_same_losses_on_a_real_server_and_on_ours(
    theirs: br.Device, ours: RunningServer
) -> None:
    with br.RemoteDevice(ours.address, dialect="burn-0.21") as spoken:
        there, here = (train(device) for device in (theirs, spoken))
    np.testing.assert_allclose(there, here, rtol=1e-4)
    assert there[-1] < 0.1 * there[0]


def test_a_burst_of_operations_takes_one_frame_each_and_frees_its_tensors(
    theirs: br.Device,
) -> None:
    x = br.zeros((16, 16), device=theirs)
    one = br.ones((16, 16), device=theirs)
    theirs.sync()
    before = theirs.traffic
    for _ in range(2000):
        x = x + one
    theirs.sync()
    sent = (theirs.traffic - before).frames_sent
    # Dropping a tensor while its last use is still queued costs no extra frame.
    assert sent < 2000 * 1.1
    assert x.numpy()[0, 0] == 2000


@pytest.mark.parametrize("megabytes", [1, 16, 63])
def test_uploads_of_up_to_64_mib_arrive(megabytes: int, theirs: br.Device) -> None:
    array = RNG.integers(0, 255, megabytes * 2**18, dtype=np.int32)
    np.testing.assert_array_equal(br.tensor(array, device=theirs).numpy(), array)


def test_a_larger_upload_is_refused_with_the_reason_and_the_session_continues(
    theirs: br.Device,
) -> None:
    with pytest.raises(br.UsageError, match="67,108,864"):
        br.tensor(np.zeros(2**24, np.float32), device=theirs)
    assert br.ones((2,), device=theirs).tolist() == [1, 1]


@pytest.mark.parametrize("dtype", [br.float64, br.float32, br.int64, br.int32, br.bool])
def test_elements_survive_a_round_trip_in_every_dtype(dtype: br.DType, theirs: br.Device) -> None:
    tensor = br.tensor([[0, 1], [2, 3]], dtype=dtype, device=theirs)
    assert (
        tensor.numpy().tolist() == np.array([[0, 1], [2, 3]]).astype(tensor.numpy().dtype).tolist()
    )


def test_bools_use_a_store_that_the_server_supports(theirs: br.Device) -> None:
    usages = [theirs.dtype_usage(store) for store in (BOOL, BOOL_U8)]
    assert any(usage == 3 for usage in usages)


def test_threads_of_one_session_keep_their_order(theirs: br.Device) -> None:
    # On one stream: the real server orders nothing across streams.
    shared = br.zeros((4,), device=theirs)
    wrong: list[object] = []

    def work() -> None:
        x = shared
        for _ in range(100):
            x = x + 1
        if x.tolist() != [100] * 4:
            wrong.append(x.tolist())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_programs_on_one_real_server_never_use_each_others_tensors(real: str) -> None:
    # All sessions of the real server share one tensor table, so our client starts at random ids.
    with br.RemoteDevice(real) as first:
        a = br.full((3,), 1.0, device=first)
        second = br.RemoteDevice(f"{real}/")
        b = br.full((3,), 2.0, device=second)
        assert (a.tolist(), b.tolist()) == ([1] * 3, [2] * 3)


@pytest.mark.parametrize(
    "route",
    [
        ("real", "native"),
        ("native", "real"),
        ("real", "burn"),
        ("burn", "real"),
        ("burn", "native"),
        ("native", "burn"),
        ("real", "other real"),
        ("native", "real", "burn", "other real", "native"),
    ],
    ids=" to ".join,
)
@pytest.mark.parametrize("dtype", [br.float32, br.int64, br.bool])
def test_tensors_move_between_servers(
    route: tuple[str, ...], dtype: br.DType, real: str, another_real: str, ours: RunningServer
) -> None:
    opened = {
        "real": br.RemoteDevice(real),
        "other real": br.RemoteDevice(another_real),
        "native": br.RemoteDevice(ours.address),
        "burn": br.RemoteDevice(ours.address, dialect="burn-0.21"),
    }
    expected = np.arange(6).reshape(2, 3) % 2
    tensor = br.tensor(expected, dtype=dtype, device=opened[route[0]])
    for name in route[1:]:
        tensor = tensor.to(opened[name])
    assert tensor.dtype == dtype
    np.testing.assert_array_equal(tensor.numpy(), expected.astype(tensor.numpy().dtype))


def test_many_concurrent_moves_arrive_as_the_right_tensors(
    theirs: br.Device, ours: RunningServer
) -> None:
    with br.RemoteDevice(ours.address) as native:
        there = [br.full((50,), i, dtype=br.int64, device=theirs).to(native) for i in range(20)]
        back = [tensor.to(theirs) for tensor in there]
        assert [int(array[0]) for array in br.read(back)] == [*range(20)]


def test_a_move_of_a_failed_tensor_raises_an_error_and_does_not_hang(
    theirs: br.Device, ours: RunningServer
) -> None:
    with br.RemoteDevice(ours.address) as native:
        failed = br.zeros((3,), device=native).take(br.tensor([7], device=native))
        with pytest.raises(br.BurnRemoteError):
            failed.to(br.RemoteDevice(ours.address, dialect="burn-0.21")).numpy()
        with pytest.raises(br.OperationFailed):  # at its source, nothing has read the failure
            native.sync()


def test_a_panic_of_the_server_raises_connection_lost_with_the_last_operation(
    doomed: br.Device,
) -> None:
    # The real server panics on casts between integers.
    tensor = br.tensor([1, 2], device=doomed).astype(br.int32)
    with pytest.raises(br.ConnectionLost, match=r"panic.*Base\.Cast.*test_our_client\.py"):
        tensor.numpy()
    with pytest.raises(br.ConnectionLost):
        br.ones((2,), device=doomed)


def test_a_server_stuck_after_a_panic_raises_connection_lost(doomed: br.Device) -> None:
    with pytest.raises(br.ConnectionLost):
        br.tensor([1, 2], device=doomed).astype(br.int32).numpy()
    # The panic poisoned the real server's only lock: sessions open, and end when they are used.
    with (
        br.RemoteDevice(str(doomed), dialect="burn-0.21") as later,
        pytest.raises(br.ConnectionLost, match="in this session or an earlier one"),
    ):
        br.ones((2,), device=later).numpy()
