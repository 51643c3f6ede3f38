"""Programs on a server with a GPU: results, moves, concurrent sessions and full memory."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional, gradients
from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import OutOfMemory
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.backends import Backend
from support.recorded import recordings, sessions
from support.servers import RunningServer, server
from support.socket_replay import replay_over_sockets

pytestmark = pytest.mark.gpu

Array = np.ndarray[Any, Any]


def session(running: RunningServer, name: str) -> br.RemoteDevice:
    """Open a separate session: devices of equal address and token would share one."""
    return br.RemoteDevice(running.address, token=name)


@pytest.fixture
def gpu_device(gpu_server: RunningServer) -> Iterator[br.RemoteDevice]:
    with br.RemoteDevice(gpu_server.address) as device:
        yield device


@pytest.fixture
def cpu_device(cpu_server: RunningServer) -> Iterator[br.RemoteDevice]:
    with br.RemoteDevice(cpu_server.address) as device:
        yield device


@pytest.mark.parametrize("recording", [name for name in recordings() if "ndarray" not in name])
def test_recorded_sessions_over_sockets_get_the_recorded_responses(
    recording: str, gpu_server: RunningServer
) -> None:
    recorded = [session for session in sessions(recording) if not session.get("addresses")]

    def run(session: dict[str, Any]) -> list[str]:
        return replay_over_sockets(session, [gpu_server.address], compare_usage=True)

    with ThreadPoolExecutor(8) as pool:
        problems = dict(
            zip((each["name"] for each in recorded), pool.map(run, recorded), strict=True)
        )
    wrong = {name: found for name, found in problems.items() if found}

    # The numbers for docs/conformance.md.
    print(f"cupy {recording}: {len(recorded):,} sessions over sockets, {len(wrong)} differ")  # noqa: T201
    assert not wrong


def test_a_tensor_moves_to_the_cpu_and_back(
    gpu_device: br.RemoteDevice, cpu_device: br.RemoteDevice
) -> None:
    array = np.random.default_rng(0).standard_normal((1000, 1000), np.float32)

    x = br.tensor(array, device=gpu_device) * 2
    there = x.to(cpu_device) + 1
    back = there.to(gpu_device) * 3

    np.testing.assert_array_equal(there.numpy(), array * 2 + 1)
    np.testing.assert_array_equal(back.numpy(), (array * 2 + 1) * 3)


def test_sessions_of_one_gpu_move_tensors_between_them(gpu_server: RunningServer) -> None:
    with session(gpu_server, "a") as a, session(gpu_server, "b") as b:
        x = br.tensor(np.eye(2048, dtype=np.float32), device=a)
        for _ in range(50):
            moved = (x @ x).to(b)
            # The first session overwrites the dropped tensor's memory at once; the second one must
            # not read the new elements.
            del x
            x = moved.to(a) @ br.eye(2048, device=a)
        np.testing.assert_array_equal(x.numpy(), np.eye(2048, dtype=np.float32))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool", "uint8"])
@pytest.mark.parametrize("size", [0, 1, 1000, 5_000_003])
def test_elements_are_read_back_unchanged(
    gpu_device: br.RemoteDevice, dtype: str, size: int
) -> None:
    array = np.random.default_rng(size).integers(0, 2, size).astype(dtype)

    np.testing.assert_array_equal(br.tensor(array, device=gpu_device).numpy(), array)


def test_many_reads_of_slow_results_each_get_their_own_result(
    gpu_device: br.RemoteDevice,
) -> None:
    x = br.tensor(np.eye(4096, dtype=np.float32), device=gpu_device)
    results = []
    for number in range(40):
        x = x @ x
        results.append(x * number)

    for number, array in enumerate(br.read(results)):
        assert array[0, 0] == number
        assert array[0, 1] == 0


def test_eight_sessions_at_once_get_their_own_results(gpu_server: RunningServer) -> None:
    def run(number: int) -> None:
        rng = np.random.default_rng(number)
        # A rotation, so that repeated application does not amplify errors.
        rotation, _ = np.linalg.qr(rng.standard_normal((256, 256)))
        with session(gpu_server, str(number)) as device:
            device.seed(number)
            q = br.tensor(rotation.astype(np.float32), device=device)
            x, expected = q, rotation
            for step in range(60):
                x, expected = x @ q, expected @ rotation
                if step % 20 == 19:
                    np.testing.assert_allclose(x.numpy(), expected, atol=1e-4)
            drawn = br.random.uniform((1000,), device=device).numpy()
            device.seed(number)
            np.testing.assert_array_equal(br.random.uniform((1000,), device=device).numpy(), drawn)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(8)))


def test_a_session_that_fills_the_gpu_gets_an_error_and_continues(gpu: Backend) -> None:
    flags = ("--device-memory", "1GiB", "--max-session-bytes", "1TiB", "--max-total-bytes", "1TiB")
    with (
        server("--backend", "cupy", *flags) as running,
        session(running, "a") as device,
        session(running, "b") as neighbour,
    ):
        kept = br.full((1000,), 7, dtype=br.float32, device=neighbour)
        held = [br.ones((2**26,), device=device) for _ in range(4)]  # 256 MiB each
        failed = held.pop()

        with pytest.raises(OutOfMemory, match="enough memory"):
            (failed + 1).numpy()
        with pytest.raises(OutOfMemory, match="enough memory"):
            failed.numpy()
        assert float(held[0].sum().item()) == 2**26
        assert float(kept.sum().item()) == 7000

        # Freed memory of another size is usable: caches are emptied before an allocation fails.
        held.clear()
        del failed
        whole = br.ones((3 * 2**26,), device=device)
        assert float(whole.sum().item()) == 3 * 2**26
        # The same holds for memory freed by another session.
        del whole
        device.sync()
        assert float(br.ones((3 * 2**26,), device=neighbour).sum().item()) == 3 * 2**26


def test_an_upload_beyond_the_free_memory_fails_alone(gpu: Backend) -> None:
    flags = ("--device-memory", "256MiB", "--max-session-bytes", "1TiB")
    with (
        server("--backend", "cupy", *flags, "--max-total-bytes", "1TiB") as running,
        br.RemoteDevice(running.address) as device,
    ):
        small = br.ones((10,), device=device)
        large = br.tensor(np.zeros(2**27, np.float32), device=device)

        with pytest.raises(OutOfMemory):
            large.numpy()
        assert float(small.sum().item()) == 10


def test_the_server_reports_its_gpu_and_its_memory_use(
    gpu_device: br.RemoteDevice, gpu_server: RunningServer
) -> None:
    held = br.ones((2**24,), device=gpu_device)
    gpu_device.sync()

    with urllib.request.urlopen(f"http://127.0.0.1:{gpu_server.port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    found = dict(
        re.findall(r'burn_remote_device_memory_bytes\{.*kind="(\w+)".*\} ([\d.e+]+)', text)
    )
    assert float(found["total"]) > 2**30
    assert float(found["used"]) >= held.nbytes
    assert 'name="NVIDIA' in text, json.dumps(found)


def digits() -> tuple[Array, Array]:
    """Return 512 images [n, 1, 8, 8] of a bar or a spot, and labels, which are learned quickly."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 2, 512)
    pictures = rng.normal(0, 0.1, (512, 1, 8, 8)).astype(np.float32)
    for picture, label in zip(pictures, labels, strict=True):
        row, column = rng.integers(1, 6, 2)
        if label:
            picture[0, row, :] += 1
        else:
            picture[0, row : row + 2, column : column + 2] += 1
    return pictures, labels


def train(device: br.Device, steps: int = 40) -> tuple[list[br.Tensor], Array]:
    """Train convolution 3×3, ReLU, max pooling 2×2 and a linear layer; return weights, losses."""
    pictures, labels = digits()
    rng = np.random.default_rng(1)
    x = br.tensor(pictures, device=device)
    y = br.tensor(np.eye(2, dtype=np.float32)[labels], device=device)
    kernel = br.tensor((rng.standard_normal((8, 1, 3, 3)) / 3).astype(np.float32), device=device)
    weight = br.tensor((rng.standard_normal((128, 2)) / 11).astype(np.float32), device=device)
    losses = []
    for _ in range(steps):
        convolved = functional.conv2d(x, kernel, padding=1)
        activated = convolved.relu()
        pooled, where = functional.max_pool2d_with_indices(activated, 2)
        flat = pooled.reshape((len(labels), 128))
        probabilities = functional.softmax(flat @ weight, dim=-1)
        losses.append(-((probabilities + 1e-6).log() * y).sum() / len(labels))
        d_logits = (probabilities - y) / len(labels)
        d_pooled = (d_logits @ weight.T).reshape(pooled.shape)
        d_activated = gradients.max_pool_backward(activated, d_pooled, where, 2, 2)
        d_convolved = d_activated * (convolved > 0).astype(br.float32)
        d_kernel = gradients.conv_weight_backward(x, kernel, d_convolved, padding=1)
        weight = weight - flat.T @ d_logits * 0.5
        kernel = kernel - d_kernel * 0.5
    return [kernel, weight], np.array([float(loss.item()) for loss in losses])


def test_a_convolutional_network_trains_alike_on_gpu_and_cpu(
    gpu_device: br.RemoteDevice, cpu_device: br.RemoteDevice
) -> None:
    weights, losses = train(gpu_device)
    others, expected = train(cpu_device)

    assert expected[-1] < 0.2 < expected[0]
    np.testing.assert_allclose(losses, expected, rtol=2e-2)
    moved = [weight.to(cpu_device) for weight in weights]
    for ours, theirs in zip(moved, others, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=2e-2)


def test_bools_are_normalized_on_the_device(gpu: Backend) -> None:
    session = gpu.open_session()
    session.activate()
    dtype = DType.from_wire({"Bool": "U8"})
    shared = gpu.to_device(TensorData(bytes([0, 1, 2, 255]), (4,), dtype))

    array = session.adopt(shared)

    assert bytes(gpu.to_bytes(array, dtype)) == bytes([0, 1, 1, 1])
    assert array.dtype == np.bool_
