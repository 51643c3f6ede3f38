"""This project's client uses servers built from Burn 0.22's crates like its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import burn_remote as br
import burn_remote.functional as F
from support.burn_programs import burn_22_server, burn_server
from support.servers import RunningServer, server

pytestmark = pytest.mark.interop

RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 4)).astype(np.float32)
Y = RNG.standard_normal((6, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def real() -> Iterator[str]:
    with burn_22_server() as address:
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


def test_the_dialect_is_detected(theirs: br.Device) -> None:
    assert theirs.info == {"dialect": "burn-0.22"}


def test_the_native_dialect_is_refused_with_what_to_do(real: str) -> None:
    with pytest.raises(br.BurnRemoteError, match=r"built with Burn 0\.22.*dialect='burn-0\.22'"):
        br.RemoteDevice(real, dialect="native")


def test_the_second_device_of_a_server_has_a_session_of_its_own(real: str) -> None:
    with br.RemoteDevice(f"{real}/1") as second, br.RemoteDevice(real) as first:
        moved = br.tensor([1.0, 2.0], device=second).to(first)
        assert moved.tolist() == [1.0, 2.0]


def test_a_device_that_the_server_does_not_have_is_refused(real: str) -> None:
    with pytest.raises(br.BurnRemoteError, match="2 devices"):
        br.RemoteDevice(f"{real}/7", dialect="burn-0.22")


COMPUTATIONS: dict[str, Callable[[br.Tensor, br.Tensor], br.Tensor]] = {
    "arithmetic": lambda x, y: x + y * 2 - x / y,
    "matmul": lambda x, y: x @ y.mT,
    "logic": lambda x, y: (x > y) ^ (x > 0),
    "not_equal": lambda x, y: x != y,
    "argmax": lambda x, y: x.argmax(axis=1),
    "sums": lambda x, y: x.sum() + y.mean(axis=1, keepdims=True),
    "softmax": lambda x, y: F.softmax(x).log(),
    "log_softmax": lambda x, y: F.log_softmax(x, 0),
    "gelu": lambda x, y: F.gelu(x),
    "sigmoid": lambda x, y: F.sigmoid(x) + F.logsigmoid(y),
    "relu": lambda x, y: F.relu(x) - F.leaky_relu(y),
    "where": lambda x, y: br.where(x > y, x, y),
    "slices": lambda x, y: x[1:5:2, [0, 2]],
    "concat": lambda x, y: br.concat([x, y], axis=1),
    "layer_norm": lambda x, y: F.layer_norm(x, (4,), y[0], y[1]),
    "batch_norm": lambda x, y: F.batch_norm(x, y[0], abs(y[1]), y[2], y[3]),
    "sort": lambda x, y: br.sort(x, axis=0, descending=True),
    "argsort": lambda x, y: br.argsort(y),
    "topk": lambda x, y: x.topk(2)[1],
    "pad": lambda x, y: F.pad(x, (1, 2), value=3.0),
    "reflect": lambda x, y: F.pad(x, (1, 2), mode="reflect"),
    "any": lambda x, y: br.any(x > 1, axis=0),
    "all": lambda x, y: br.all(x > -9),
    "sum of axes": lambda x, y: x.reshape((2, 3, 4)).sum(axis=(0, 2)),
    "unfold": lambda x, y: F.unfold(x.reshape((1, 1, 6, 4)), 2, padding=1),
    "conv2d": lambda x, y: F.conv2d(x.reshape((1, 1, 6, 4)), y[:3, :3].reshape((1, 1, 3, 3))),
    "sign": lambda x, y: -x.sign() + br.hypot(x, y),
    "clip": lambda x, y: x.clip(min=0.1) + y.clip(max=0.2),
    "cumulative_sum": lambda x, y: x.cumulative_sum(axis=0),
}


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_results_match_those_of_our_own_server(
    name: str, theirs: br.Device, ours: RunningServer
) -> None:
    results = []
    with br.RemoteDevice(ours.address) as native:
        for device in (theirs, native):
            tensors = br.tensor(X, device=device), br.tensor(Y, device=device)
            results.append(COMPUTATIONS[name](*tensors).numpy())
    there, here = results
    assert there.dtype == here.dtype
    np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-5)


def train(device: br.Device, steps: int = 30) -> list[float]:
    """Fit a line with recorded gradients; return the losses."""
    x = br.tensor(X, device=device)
    target = br.tensor(X @ np.array([[1.0], [-2.0], [3.0], [0.5]], np.float32), device=device)
    weights = br.zeros((4, 1), device=device).requires_grad_()
    losses = []
    for _ in range(steps):
        loss = ((x @ weights - target) ** 2).mean()
        (gradient,) = br.autograd.grad(loss, [weights])
        assert gradient is not None
        losses.append(loss.detach())
        weights = (weights - 0.1 * gradient).detach().requires_grad_()
    return [float(loss) for loss in losses]


def test_training_gives_the_same_losses_on_a_real_server_and_on_ours(
    theirs: br.Device, ours: RunningServer
) -> None:
    with br.RemoteDevice(ours.address, dialect="burn-0.22") as spoken:
        there, here = (train(device) for device in (theirs, spoken))
    np.testing.assert_allclose(there, here, rtol=1e-4)
    assert there[-1] < 0.1 * there[0]


def test_a_burst_of_operations_shares_frames(theirs: br.Device) -> None:
    x, one = br.zeros((16, 16), device=theirs), br.ones((16, 16), device=theirs)
    theirs.sync()
    before = theirs.traffic
    for _ in range(2000):
        x = x + one
    theirs.sync()
    assert (theirs.traffic - before).frames_sent < 200
    assert x.numpy()[0, 0] == 2000


@pytest.mark.parametrize("megabytes", [1, 16, 100])
def test_large_uploads_arrive(megabytes: int, theirs: br.Device) -> None:
    array = RNG.integers(0, 255, megabytes * 2**18, dtype=np.int32)
    np.testing.assert_array_equal(br.tensor(array, device=theirs).numpy(), array)


@pytest.mark.parametrize("dtype", [br.float64, br.float32, br.int64, br.int32, br.bool])
def test_elements_survive_a_round_trip_in_every_dtype(dtype: br.DType, theirs: br.Device) -> None:
    tensor = br.tensor([[0, 1], [2, 3]], dtype=dtype, device=theirs)
    expected = np.array([[0, 1], [2, 3]]).astype(tensor.numpy().dtype)
    assert tensor.numpy().tolist() == expected.tolist()


@pytest.mark.parametrize(
    "route",
    [
        ("real 0.22", "native"),
        ("native", "real 0.22"),
        ("real 0.22", "ours 0.22"),
        ("ours 0.22", "real 0.22"),
        ("real 0.21", "real 0.22"),
        ("real 0.22", "real 0.21"),
        ("native", "real 0.22", "ours 0.22", "real 0.21", "native"),
    ],
    ids=" to ".join,
)
@pytest.mark.parametrize("dtype", [br.float32, br.int64, br.bool])
def test_tensors_move_between_servers_of_all_dialects(
    route: tuple[str, ...], dtype: br.DType, real: str, ours: RunningServer
) -> None:
    expected = np.arange(6).reshape(2, 3) % 2
    with burn_server() as old:
        opened = {
            "real 0.22": br.RemoteDevice(real),
            "real 0.21": br.RemoteDevice(old),
            "native": br.RemoteDevice(ours.address),
            "ours 0.22": br.RemoteDevice(ours.address, dialect="burn-0.22"),
        }
        tensor = br.tensor(expected, dtype=dtype, device=opened[route[0]])
        for name in route[1:]:
            tensor = tensor.to(opened[name])
        found = tensor.numpy()
    assert tensor.dtype == dtype
    np.testing.assert_array_equal(found, expected.astype(found.dtype))


def test_a_panic_of_the_server_raises_connection_lost_with_the_last_operation(real: str) -> None:
    # The real server panics on a row that does not exist, and ends the session.
    with br.RemoteDevice(real, dialect="burn-0.22") as doomed:
        tensor = br.zeros((3,), device=doomed).take(br.tensor([7], device=doomed))
        with pytest.raises(br.ConnectionLost, match=r"Burn 0\.22.*panics.*Base\.Select"):
            tensor.numpy()
    # Other sessions live on.
    with br.RemoteDevice(f"{real}/1") as later:
        assert br.ones((2,), device=later).tolist() == [1, 1]
