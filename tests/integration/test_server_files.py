"""Loading of a server's own files: results of local loading, typed failures, nothing else read."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import burn_remote as br
from burn_remote.tensor_files import server_files
from burn_remote_protocol.dtypes import F32, U8
from burn_remote_protocol.tensors import TensorSpec
from support.servers import UNFORKED, RunningServer, server


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def running(root: Path) -> Iterator[RunningServer]:
    flags = ("--data-dir", str(root), "--max-session-bytes", "64MiB")
    with server(*flags, module=UNFORKED) as one:
        yield one


@pytest.fixture
def device(running: RunningServer) -> Iterator[br.RemoteDevice]:
    with br.RemoteDevice(running.address, automatic_graphs=False) as opened:
        yield opened


TREE: dict[str, Any] = {
    "layers": [{"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(3, np.float16)}],
    "mask": np.array([True, False, True]),
    "ids": np.array([2**40, -1]),
    "bf": np.array([1.5, -2], ml_dtypes.bfloat16),
    "scalar": np.float64(0.1),
    "empty": np.zeros((0, 4), np.int16),
}


def test_a_safetensors_file_has_the_tensors_of_local_loading(
    device: br.RemoteDevice, root: Path
) -> None:
    br.save(root / "tree.safetensors", TREE)
    local = br.load(root / "tree.safetensors", device=device)
    remote = br.load("server:/tree.safetensors", device=device)
    assert {*remote} == {*local}
    for name, tensor in local.items():
        np.testing.assert_array_equal(remote[name].numpy(), tensor.numpy(), strict=True)
        assert remote[name].dtype is tensor.dtype


def test_options_of_safetensors_apply(device: br.RemoteDevice, root: Path) -> None:
    br.save(root / "options.safetensors", TREE)
    found = br.load(
        "server:options.safetensors",
        device=device,
        names=["layers.0.w", "ids"],
        dtype=br.float64,
        nested=True,
    )
    assert found["layers"]["0"]["w"].dtype is br.float64
    assert found["ids"].tolist() == [2**40, -1]
    with pytest.raises(br.InvalidCheckpoint, match=r"server:/options.* has no tensor 'none'"):
        br.load("server:/options.safetensors", device=device, names=["none"])


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8"])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_npy_file_is_loaded(
    dtype: str, shape: tuple[int, ...], order: Any, device: br.RemoteDevice, root: Path
) -> None:
    array = (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(dtype)
    np.save(root / "x.npy", np.asarray(array, order=order))
    found = br.load("server:/x.npy", device=device)
    np.testing.assert_array_equal(found.numpy(), array, strict=True)


def test_the_arrays_of_an_archive_are_loaded(device: br.RemoteDevice, root: Path) -> None:
    arrays: dict[str, Any] = {
        "x": np.arange(2**20, dtype=np.float32),
        "group/y": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "empty": np.zeros((0, 3)),
        "z": np.array(True),
    } | {f"small/{number}": np.full(3, number) for number in range(40)}
    np.savez(root / "several.npz", **arrays)
    before = device.traffic
    found = br.load("server:/several.npz", device=device)
    used = device.traffic - before
    # One round trip reads the headers of all arrays. A slow client sends it in several frames.
    assert used.frames_sent < len(arrays) // 2
    assert used.bytes_received < 2**18
    assert [*found] == [*arrays]
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name].numpy(), array, strict=True)


def test_an_archive_without_arrays_is_loaded_as_it_is_from_this_process(
    root: Path, device: br.Device
) -> None:
    np.savez(root / "none.npz")
    assert br.load(root / "none.npz", device=device) == {}
    assert br.load("server:/none.npz", device=device) == {}


def test_a_compressed_archive_is_refused_with_advice(device: br.RemoteDevice, root: Path) -> None:
    np.savez_compressed(root / "small.npz", x=np.zeros(1000))
    with pytest.raises(br.InvalidCheckpoint, match=r"small\.npz: .*x\.npy.* numpy\.savez, or load"):
        br.load("server:/small.npz", device=device)


@pytest.mark.parametrize("damage", ["end", "header", "member"])
def test_a_damaged_archive_is_named_in_the_error(
    damage: str, device: br.RemoteDevice, root: Path
) -> None:
    path = root / f"{damage}.npz"
    np.savez(path, x=np.arange(100))
    content = bytearray(path.read_bytes())
    if damage == "end":
        content[-30:] = b""
    elif damage == "header":
        content[:4] = b"none"
    else:
        place = content.index(b"NUMPY")
        content[place : place + 5] = b"OTHER"
    path.write_bytes(content)
    with pytest.raises(br.InvalidCheckpoint, match=rf"server:/{damage}\.npz: "):
        br.load(f"server:/{damage}.npz", device=device)


def test_the_elements_do_not_cross_the_network(device: br.RemoteDevice, root: Path) -> None:
    np.save(root / "large.npy", np.ones(2**22, np.float32))
    before = device.traffic
    found = br.load("server:/large.npy", device=device)
    assert float(found.sum()) == 2**22
    used = device.traffic - before
    assert used.bytes_received < 2**16
    assert used.bytes_sent < 2**12


def test_a_header_longer_than_the_first_read_is_completed(
    device: br.RemoteDevice, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    br.save(root / "long.safetensors", {f"name{n}": np.full(1, n) for n in range(100)})
    monkeypatch.setattr(server_files, "FIRST_BYTES", 64)
    found = br.load("server:/long.safetensors", device=device)
    assert [found[f"name{n}"].item() for n in range(100)] == [*range(100)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("none.npy", "no such file"),
        ("../x.npy", "is not the name of a file"),
        ("/x.npy", "is not the name of a file"),
        ("link.npy", "link, which is not followed"),
        ("pipe.npy", "not a regular file"),
    ],
)
def test_a_file_that_the_server_does_not_give_is_a_typed_error(
    name: str, text: str, device: br.RemoteDevice, root: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "secret.npy", np.ones(3))
    for made in ("link.npy", "pipe.npy"):
        (root / made).unlink(missing_ok=True)
    (root / "link.npy").symlink_to(tmp_path / "secret.npy")
    os.mkfifo(root / "pipe.npy")
    with pytest.raises(br.FileUnavailable, match=text):
        br.load(f"server:/{name}", device=device)
    assert br.ones((1,), device=device).item() == 1  # the session goes on


def npy_bytes(descr: str, shape: tuple[int, ...]) -> bytes:
    """Return a ``.npy`` file without elements."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


HOSTILE = {
    "short.safetensors": (b"\1", "too few for a safetensors file"),
    "claims.safetensors": ((2**62).to_bytes(8, "little"), "header"),
    "header.safetensors": ((10**6).to_bytes(8, "little") + b"{", "header"),
    "empty.npy": (b"", r"not a \.npy file"),
    "text.npy": (b"no array", r"not a \.npy file"),
    "objects.npy": (npy_bytes("|O", (1,)), "Python objects"),
    "claims.npy": (npy_bytes("<f8", (2**40,)), "it has 0 bytes of elements"),
    "bools.npy": (npy_bytes("<f4", (True,)) + bytes(4), "cannot have the shape"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_invalid_file_is_named_in_the_error(
    name: str, device: br.RemoteDevice, root: Path
) -> None:
    content, reason = HOSTILE[name]
    (root / name).write_bytes(content)
    with pytest.raises(br.InvalidCheckpoint, match=f"server:/{name}: .*{reason}"):
        br.load(f"server:/{name}", device=device)


def test_a_big_endian_array_is_refused(device: br.RemoteDevice, root: Path) -> None:
    np.save(root / "big.npy", np.ones(2, ">f4"))
    with pytest.raises(br.InvalidCheckpoint, match="big-endian; load it in this process"):
        br.load("server:/big.npy", device=device)


def test_a_file_beyond_the_quota_is_refused_before_it_is_read(
    device: br.RemoteDevice, running: RunningServer, root: Path
) -> None:
    with (root / "sparse.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (2**30,)}
        )
        file.truncate(file.tell() + 2**32)
    before = running.peak_bytes
    found = br.load("server:/sparse.npy", device=device)
    with pytest.raises(br.QuotaExceeded, match="LoadFile"):
        found.numpy()
    assert running.peak_bytes - before < 2**26


def test_a_failed_load_gives_its_quota_back(device: br.RemoteDevice, root: Path) -> None:
    np.save(root / "half.npy", np.ones(2**23, np.float32))  # 32 of 64 MiB
    session = device.session
    size, version = np.frombuffer(session.find_file("half.npy").result().bytes, "<u8").tolist()
    for _ in range(8):
        (handle,) = device.runners.create_empty_handles([TensorSpec((2**23,), F32)])
        session.load_file(handle.id, handle.spec, "half.npy", version + 1, size - 2**25)
        with pytest.raises(br.FileUnavailable, match="has changed since it was found"):
            br.Tensor(handle).numpy()
    assert float(br.load("server:/half.npy", device=device).sum()) == 2**23


def test_a_file_that_was_replaced_after_it_was_found_is_not_mixed(
    device: br.RemoteDevice, root: Path
) -> None:
    np.save(root / "moving.npy", np.ones(4))
    found = device.session.find_file("moving.npy").result()
    _, version = np.frombuffer(found.bytes, "<u8").tolist()
    np.save(root / "other.npy", np.zeros(4))
    (root / "other.npy").rename(root / "moving.npy")
    (handle,) = device.runners.create_empty_handles([TensorSpec((4,), U8)])
    device.session.load_file(handle.id, handle.spec, "moving.npy", version, 0)
    with pytest.raises(br.FileUnavailable, match=r"issued at .*test_server_files\.py"):
        (br.Tensor(handle) + 1).numpy()


def test_bytes_that_are_no_bools_become_valid_bools(device: br.RemoteDevice, root: Path) -> None:
    np.save(root / "bools.npy", np.array([0, 1, 2, 255], np.uint8))
    content = (root / "bools.npy").read_bytes().replace(b"'|u1'", b"'|b1'")
    (root / "bools.npy").write_bytes(content)
    found = br.load("server:/bools.npy", device=device)
    assert found.astype(br.int32).tolist() == [0, 1, 1, 1]


def test_a_server_without_a_directory_says_what_its_operator_does() -> None:
    with (
        server() as without,
        br.RemoteDevice(without.address) as device,
        pytest.raises(br.Unsupported, match="--data-dir PATH"),
    ):
        br.load("server:/x.npy", device=device)


def test_an_older_server_is_refused_by_name_before_anything_is_sent(
    device: br.RemoteDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(device.session.welcome.limits, "files")
    before = device.traffic
    with pytest.raises(br.Unsupported, match="update the server"):
        br.load("server:/x.npy", device=device)
    assert (device.traffic - before).requests == 0


def test_burns_dialect_has_no_files(running: RunningServer) -> None:
    with (
        br.RemoteDevice(running.address, dialect="burn-0.21") as device,
        pytest.raises(br.Unsupported, match="Burn's dialect"),
    ):
        br.load("server:/x.npy", device=device)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda d: br.load("server:/x.safetensors", device=d, like={}), "without it"),
        (lambda d: br.save("server:/x.npy", br.ones((1,), device=d)), "can only be loaded"),
    ],
)
def test_what_a_server_cannot_do_with_files_is_refused(
    call: Any, text: str, device: br.RemoteDevice
) -> None:
    with pytest.raises(br.ArgumentMismatch, match=text):
        call(device)


def test_a_name_that_cannot_be_sent_is_refused(device: br.RemoteDevice) -> None:
    with pytest.raises(br.UsageError, match="not valid Unicode"):
        br.load("server:/\ud800.npy", device=device)
    assert br.ones((1,), device=device).item() == 1


def test_a_missing_directory_stops_the_start_with_one_sentence(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "burn_remote_server", "--data-dir", str(tmp_path / "none")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 2
    assert run.stderr.startswith("burn-remote-server: ")
    assert "none cannot be read" in run.stderr
    assert "Traceback" not in run.stderr
