"""Contents and named tensors that sessions of one token share over real connections."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from support.access import ALICE, BOB
from support.servers import RunningServer, server


def tree(first: int) -> dict[str, Any]:
    """Return weights that no test with another number has."""
    return {
        **{f"layers.{i}.w": np.full((64, 64), first + i, np.float32) for i in range(20)},
        **{f"layers.{i}.b": np.full(64, i, np.float16) for i in range(20)},
        "mask": np.array([True, False, True]),
        "empty": np.zeros((0, 4), np.int16),
    }


BYTES = sum(np.asarray(value).nbytes for value in tree(0).values())


@pytest.fixture(scope="module")
def fresh() -> Iterator[RunningServer]:
    """A server on which no other module shares anything."""
    with server(BURN_REMOTE_TOKENS=f"alice:{ALICE},bob:{BOB}") as running:
        yield running


def sent_by(device: br.RemoteDevice, path: Path, expected: dict[str, Any]) -> int:
    """Load a file with ``share=True``, compare the tensors, and return the bytes of the load."""
    device.sync()  # sends the drops of earlier tensors
    before = device.traffic
    found = br.load(path, device=device, share=True)
    device.sync()
    sent = (device.traffic - before).bytes_sent
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor.numpy(), expected[name])
    return sent


@pytest.mark.parametrize(("suffix", "first"), [(".safetensors", 100), (".npz", 200)])
def test_the_same_file_costs_100_bytes_in_later_sessions_of_the_token(
    fresh: RunningServer, tmp_path: Path, suffix: str, first: int
) -> None:
    path, weights = tmp_path / f"weights{suffix}", tree(first)
    br.save(path, weights)
    with br.RemoteDevice(fresh.address, token=ALICE) as device:
        assert sent_by(device, path, weights) > BYTES
        assert sent_by(device, path, weights) < 100
    with br.RemoteDevice(fresh.address, token=ALICE) as device:
        assert sent_by(device, path, weights) < 100
    with br.RemoteDevice(fresh.address, token=BOB) as device:
        assert sent_by(device, path, weights) > BYTES


def test_a_shared_array_is_sent_once(fresh: RunningServer, tmp_path: Path) -> None:
    array = np.arange(1, 100_000, dtype=np.float32)
    np.save(tmp_path / "x.npy", array)
    for is_first in (True, False):
        with br.RemoteDevice(fresh.address, token=ALICE) as device:
            x = br.tensor(array, device=device, share=True)
            loaded = br.load(tmp_path / "x.npy", device=device, share=True)
            np.testing.assert_array_equal(x.numpy(), array)
            np.testing.assert_array_equal(loaded.numpy(), array)
            assert (device.traffic.bytes_sent > array.nbytes) == is_first
            assert device.traffic.bytes_sent < 2 * array.nbytes


def test_options_of_safetensors_apply_to_shared_loads(fresh: RunningServer, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    br.save(path, tree(300))
    for _ in range(2):
        with br.RemoteDevice(fresh.address, token=ALICE) as device:
            found = br.load(
                path, device=device, share=True, names=["layers.1.w", "mask"], dtype="float64",
                nested=True,
            )  # fmt: skip
            assert found["layers"]["1"]["w"].dtype is br.float64
            assert found["mask"].tolist() == [True, False, True]
            with pytest.raises(br.ArgumentMismatch, match="share=True"):
                br.load(path, share=True, like={})
            with pytest.raises(br.ArgumentMismatch, match="not sent"):
                br.load("server:/weights.safetensors", device=device, share=True)


def test_a_server_without_room_for_contents_just_gets_the_elements() -> None:
    array = np.arange(100_000, dtype=np.float32)
    with server("--max-content-bytes", "0") as running:
        for _ in range(2):
            with br.RemoteDevice(running.address) as device:
                x = br.tensor(array, device=device, share=True)
                np.testing.assert_array_equal(x.numpy(), array)
                assert device.traffic.requests == 1
                assert device.traffic.bytes_sent > array.nbytes


def test_a_local_device_and_burns_dialect_just_get_the_elements(fresh: RunningServer) -> None:
    array = np.arange(100_000, dtype=np.float32)
    with br.LocalDevice() as device:
        np.testing.assert_array_equal(br.tensor(array, device=device, share=True).numpy(), array)
    with br.RemoteDevice(fresh.address, token=ALICE, dialect="burn-0.21") as device:
        np.testing.assert_array_equal(br.tensor(array, device=device, share=True).numpy(), array)
        with pytest.raises(br.Unsupported, match="named tensors"):
            device.list_published()


def test_computing_in_one_session_does_not_change_what_another_reads(
    fresh: RunningServer,
) -> None:
    array = np.zeros(2**18, np.float32)
    with (
        br.RemoteDevice(fresh.address, token=ALICE) as first,
        br.RemoteDevice(fresh.address, token=ALICE) as second,
    ):
        kept = br.tensor(array, device=first, share=True)
        x = br.tensor(array, device=second, share=True)
        for _ in range(5):
            x = x + 1  # over its own memory, as soon as nobody else refers to it
        assert {*x.numpy()} == {5}
        del kept
        for device in (first, second):
            assert not br.tensor(array, device=device, share=True).numpy().any()


def test_a_named_tensor_outlives_its_session(fresh: RunningServer) -> None:
    with br.RemoteDevice(fresh.address, token=ALICE) as device:
        device.publish("weights/é", br.arange(5, device=device))
        assert device.list_published() == {"weights/é": br.arange(5, device=device).handle.spec}
    with br.RemoteDevice(fresh.address, token=BOB) as device:
        assert device.list_published() == {}
        with pytest.raises(KeyError, match="weights"):
            device.published("weights/é")
        with pytest.raises(KeyError):
            device.unpublish("weights/é")
    with br.RemoteDevice(fresh.address, token=ALICE) as device:
        x = device.published("weights/é")
        device.publish("weights/é", br.zeros((2,), device=device))
        assert x.tolist() == [0, 1, 2, 3, 4]
        assert device.published("weights/é").tolist() == [0, 0]
        device.unpublish("weights/é")
        assert device.list_published() == {}
        assert x.tolist() == [0, 1, 2, 3, 4]


def test_named_tensors_of_a_removed_token_are_freed(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"alice {ALICE}\nbob {BOB}\n")
    with server("--token-file", str(tokens)) as running:
        with br.RemoteDevice(running.address, token=ALICE) as device:
            device.publish("w", br.zeros((1000, 1000), device=device))
        taken = running.metric('burn_remote_kept_bytes{device="0",kind="published"}')
        assert taken > 4_000_000
        tokens.write_text(f"bob {BOB}\n")
        running.process.send_signal(signal.SIGHUP)
        with pytest.raises(br.HandshakeRefused):
            for _ in range(500):
                br.RemoteDevice(running.address, token=ALICE).close()
        assert running.metric('burn_remote_kept_bytes{device="0",kind="published"}') == 0


def test_local_devices_of_a_process_share_names() -> None:
    with br.LocalDevice() as device:
        device.publish("x", br.arange(3, device=device))
    with br.LocalDevice() as device:
        assert device.published("x").tolist() == [0, 1, 2]
        device.unpublish("x")


def test_what_cannot_be_published_is_explained() -> None:
    with br.LocalDevice() as device, br.LocalDevice() as other:
        x = br.ones(3, device=device)
        for name in ("", "a\n", "n" * 300, 5):
            with pytest.raises(br.UsageError, match="name of a published tensor"):
                device.publish(name, x)  # type: ignore[arg-type]
        with pytest.raises(br.UsageError, match=r"burn_remote\.tensor"):
            device.publish("x", np.ones(3))  # type: ignore[arg-type]
        with pytest.raises(br.ArgumentMismatch, match=r"write publish\('x', x\)"):
            device.publish(x, "x")  # type: ignore[arg-type]
        with pytest.raises(br.DeviceMismatch):
            other.publish("x", x)
        with pytest.raises(br.OperationFailed):
            device.publish("x", br.linalg.cholesky(-br.eye(2, device=device)))


def test_a_tracked_tensor_is_published_by_its_elements() -> None:
    with br.LocalDevice() as device:
        x = br.ones(3, device=device).requires_grad_()
        device.publish("x", x * 2)
        assert not device.published("x").requires_grad
        device.unpublish("x")
