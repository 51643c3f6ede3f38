"""``load`` and ``save``: NumPy reads what is written, what NumPy writes is read, by suffix."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import burn_remote as br


@pytest.fixture(scope="module")
def local() -> Iterator[br.Device]:
    with br.LocalDevice() as device:
        yield device


DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]
SHAPES = [(), (0,), (3,), (2, 3), (2, 0, 3)]


def sample(dtype: str, shape: tuple[int, ...] = (2, 3)) -> Any:
    return (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_numpy_loads_the_saved_array(
    dtype: str, shape: tuple[int, ...], local: br.Device, tmp_path: Path
) -> None:
    array = sample(dtype, shape)
    br.save(tmp_path / "x.npy", br.tensor(array, device=local))
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), array, strict=True)


def test_save_takes_its_arguments_in_the_order_of_pytorch_too(tmp_path: Path) -> None:
    br.save({"x": np.arange(3)}, tmp_path / "x.safetensors")  # type: ignore[arg-type]
    br.save(np.arange(3), str(tmp_path / "x.npy"))  # type: ignore[arg-type]
    with br.LocalDevice() as device:
        assert br.load(tmp_path / "x.safetensors", device=device)["x"].tolist() == [0, 1, 2]
    assert np.load(tmp_path / "x.npy").tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [*DTYPES, ">i4", ">f8"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_array_that_numpy_saved_is_loaded(
    dtype: str, shape: tuple[int, ...], order: Any, local: br.Device, tmp_path: Path
) -> None:
    array = np.asarray(sample(dtype, shape), order=order)
    np.save(tmp_path / "x.npy", array)
    found = br.load(tmp_path / "x.npy", device=local)
    np.testing.assert_array_equal(found.numpy(), array)
    assert found.numpy().dtype == array.dtype.newbyteorder("=")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_the_arrays_that_numpy_saved_are_loaded_by_name(
    save: Callable[..., None], local: br.Device, tmp_path: Path
) -> None:
    arrays = {"a": sample("f4"), "b.c": np.zeros(100_000, np.int16), "empty": np.zeros((0, 2))}
    save(tmp_path / "x.npz", **arrays)
    found = br.load(tmp_path / "x.npz", device=local)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name].numpy(), array, strict=True)


def test_numpy_loads_the_saved_tree_by_dotted_names(local: br.Device, tmp_path: Path) -> None:
    tree = {
        "layers": [br.ones((2,), device=local), br.zeros((1, 2), device=local)],
        "scale": np.float64(0.5),
        "mask": br.tensor([True, False], device=local),
    }
    br.save(tmp_path / "x.npz", tree)
    with np.load(tmp_path / "x.npz") as found:
        assert {*found} == {"layers.0", "layers.1", "scale", "mask"}
        np.testing.assert_array_equal(found["layers.0"], np.ones(2, np.float32), strict=True)
        np.testing.assert_array_equal(found["mask"], np.array([True, False]), strict=True)


def test_safetensors_files_have_their_options(local: br.Device, tmp_path: Path) -> None:
    br.save(
        tmp_path / "x.safetensors", {"a": {"b": br.ones((2,), device=local)}}, metadata={"k": "v"}
    )
    assert br.safetensors_metadata(tmp_path / "x.safetensors") == {"k": "v"}
    nested = br.load(tmp_path / "x.safetensors", device=local, nested=True, dtype=br.float64)
    assert nested["a"]["b"].dtype is br.float64


def test_the_device_may_be_named_as_in_pytorch(tmp_path: Path, local: br.Device) -> None:
    load: Any = br.load
    br.save(tmp_path / "x.npy", br.ones((2,), device=local))
    assert load(tmp_path / "x.npy", map_location=local).device == local
    with pytest.raises(br.ArgumentMismatch, match=r"no argument strict=; .* like=weights"):
        load(tmp_path / "x.npy", device=local, strict=False)


def test_progress_of_numpys_files_reaches_all_bytes(local: br.Device, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []

    def note(*report: Any) -> None:
        seen.append(report)

    br.save(tmp_path / "x.npz", {"a": np.zeros(5), "b": np.zeros(3)}, progress=note)
    assert seen == [("a", 40, 64), ("b", 64, 64)]
    seen.clear()
    br.save(tmp_path / "x.npy", br.zeros((5,), device=local), progress=note)
    br.load(tmp_path / "x.npy", device=local, progress=note)
    assert seen == [("", 20, 20)] * 2


def test_a_failed_save_leaves_the_former_file(local: br.Device, tmp_path: Path) -> None:
    br.save(tmp_path / "x.npz", {"a": np.ones(2)})
    before = (tmp_path / "x.npz").read_bytes()
    failed = br.ones((2,), device=local).take(br.tensor([7], device=local), axis=0)
    with pytest.raises(br.OperationFailed):
        br.save(tmp_path / "x.npz", {"a": np.ones(2), "b": failed})
    assert (tmp_path / "x.npz").read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["x.npz"]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda p, x: br.load(p / "x.pt"), br.ArgumentMismatch, "names no format; use .safe"),
        (lambda p, x: br.save(p / "x", x), br.ArgumentMismatch, "names no format"),
        (lambda p, x: br.save(p / "x.npz", x), br.ArgumentMismatch, "write {'x': tensor}"),
        (
            lambda p, x: br.save(p / "x.npy", {"a": x}),
            br.ArgumentMismatch,
            "one tensor, but the value is of type dict",
        ),
        (lambda p, x: br.load(p / "x.npy", nested=True), br.ArgumentMismatch, "nested can only"),
        (lambda p, x: br.save(p / "x.npz", {"a": x}, metadata={}), br.ArgumentMismatch, "metadata"),
        (lambda p, x: br.save(p / "x.npy", x.astype(br.bfloat16)), br.DTypeMismatch, "safetensors"),
        (
            lambda p, x: br.save(p / "x.npz", {"a": np.zeros(1, ml_dtypes.bfloat16)}),
            br.DTypeMismatch,
            "a is bfloat16",
        ),
    ],
)
def test_what_a_format_cannot_hold_is_refused(
    call: Callable[[Path, br.Tensor], object],
    error: type[Exception],
    text: str,
    local: br.Device,
    tmp_path: Path,
) -> None:
    with pytest.raises(error, match=text):
        call(tmp_path, br.ones((1,), device=local))
    assert [*tmp_path.iterdir()] == []


def npy_bytes(descr: str, shape: object, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header + data


HOSTILE = {
    b"": "not a .npy file",
    b"\x93NUMPY": "not a .npy file",
    npy_bytes("|O", (1,), b"cos\nsystem\n"): "Python objects",
    npy_bytes("<f4", (2**40,)): "has 0 bytes of elements, but its header says",
    npy_bytes("<f4", (2**62, 2**62)): "cannot have the shape",
    npy_bytes("<f4", (0, 2**62)): "cannot have the shape",
    npy_bytes("<f4", (-1,)): "cannot have the shape",
    npy_bytes("<f4", (True,)): "cannot have the shape",
    npy_bytes("<f4", (1,) * 33): "cannot have the shape",
    npy_bytes("<f4", (3,), b"1234"): "has 4 bytes",
    npy_bytes("<U4", (1,), bytes(16)): "tensors cannot hold",
    npy_bytes("<f4", "__import__('os')"): "not a .npy file",
    npy_bytes("<f4", (1,), bytes(4), b"\x09\x00"): "not a .npy file|version",
    b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65_535: "not a .npy file",
}


@pytest.mark.parametrize("content", HOSTILE)
def test_a_hostile_npy_file_is_refused_before_its_claim_is_allocated(
    content: bytes, local: br.Device, tmp_path: Path
) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(br.InvalidCheckpoint, match=HOSTILE[content]):
        br.load(tmp_path / "x.npy", device=local)


def test_a_compressed_member_that_claims_too_much_is_refused(
    local: br.Device, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", npy_bytes("<f4", (2**40,)))
    with pytest.raises(br.InvalidCheckpoint, match="too few for"):
        br.load(tmp_path / "x.npz", device=local)


def archive_of(content: bytes, method: int = zipfile.ZIP_STORED) -> bytearray:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("a.npy", content)
    return bytearray(buffer.getvalue())


def test_a_member_that_claims_more_compressed_bytes_than_its_file_is_refused(
    local: br.Device, tmp_path: Path
) -> None:
    content = archive_of(npy_bytes("<f4", (2**40,), b"1234"))
    directory = content.rindex(b"PK\x01\x02")
    # The sizes in the directory, compressed and not.
    content[directory + 20 : directory + 28] = (2**32 - 2).to_bytes(4, "little") * 2
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(br.InvalidCheckpoint, match=r"claims 4,294,967,294 compressed bytes, but"):
        br.load(tmp_path / "x.npz", device=local)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_members_that_numpy_does_not_write_are_refused(
    method: int, local: br.Device, tmp_path: Path
) -> None:
    (tmp_path / "x.npz").write_bytes(archive_of(ARRAY, method))
    with pytest.raises(br.InvalidCheckpoint, match=f"compression method {method}"):
        br.load(tmp_path / "x.npz", device=local)


def test_a_member_whose_name_differs_in_its_header_is_refused(
    local: br.Device, tmp_path: Path
) -> None:
    content = archive_of(ARRAY)
    content[6:8] = (0x800).to_bytes(2, "little")  # the name in the header is UTF-8
    content[30] = 0xFF
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(br.InvalidCheckpoint, match=r"x\.npz"):
        br.load(tmp_path / "x.npz", device=local)


def test_a_deprecated_name_of_a_dtype_is_refused_if_warnings_are_errors(
    local: br.Device, tmp_path: Path
) -> None:
    (tmp_path / "x.npy").write_bytes(npy_bytes("<a4", (2,), bytes(8)))
    with pytest.raises(br.InvalidCheckpoint, match=r"not a \.npy file"):
        br.load(tmp_path / "x.npy", device=local)


def test_a_member_that_begins_before_the_file_is_refused(local: br.Device, tmp_path: Path) -> None:
    content = archive_of(ARRAY)
    del content[:5]
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(br.InvalidCheckpoint, match=r"x\.npz"):
        br.load(tmp_path / "x.npz", device=local)


def test_two_members_of_one_name_are_refused(local: br.Device, tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(tmp_path / "x.npz", "w") as archive,
        pytest.warns(UserWarning, match="Duplicate"),
    ):
        archive.writestr("a.npy", npy_bytes("<f4", (0,)))
        archive.writestr("a.npy", npy_bytes("<f4", (0,)))
    with pytest.raises(br.InvalidCheckpoint, match="two with the same name"):
        br.load(tmp_path / "x.npz", device=local)


def archive_bytes() -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=np.arange(20), b=np.ones((2, 2)))
    return buffer.getvalue()


ARCHIVE = archive_bytes()
ARRAY = npy_bytes("<f4", (4, 2), bytes(32))


@given(data=st.data())
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@pytest.mark.parametrize(
    ("suffix", "content"), [(".npy", ARRAY), (".npz", ARCHIVE)], ids=["npy", "npz"]
)
def test_a_mutated_file_is_loaded_or_refused_with_one_error(
    suffix: str, content: bytes, data: st.DataObject, local: br.Device, tmp_path: Path
) -> None:
    mutated = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(mutated) - 1))
        mutated[place] = data.draw(st.integers(0, 255))
    del mutated[data.draw(st.integers(1, len(mutated))) :]
    path = tmp_path / f"x{suffix}"
    path.write_bytes(mutated)
    try:
        br.load(path, device=local)
    except br.InvalidCheckpoint as error:
        assert str(path) in str(error)


MEMORY = """
import resource, sys
import numpy as np
import burn_remote as br
path, kind = sys.argv[1:]
count, size = 16, 2**24
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
with br.RemoteDevice(sys.stdin.readline().strip()) as device:
    xs = {str(n): br.ones((size // 4,), device=device) for n in range(count)}
    br.read([xs["0"]]); device.sync()
    before = peak()
    br.save(path, xs)
    print("save", peak() - before)
    del xs
    found = br.load(path, device=device)
    print("load", peak() - before)
    assert float(found["15"].sum()) == size // 4
"""


def test_a_failed_operation_during_a_load_does_not_blame_the_file(
    tmp_path: Path, local: br.LocalDevice
) -> None:
    np.savez(tmp_path / "x.npz", a=np.ones(2))

    def fail(*_: object) -> None:
        raise br.OperationFailed("no room")

    with pytest.raises(br.OperationFailed, match="no room"):
        br.load(tmp_path / "x.npz", device=local, progress=fail)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_a_client_holds_a_part_of_a_file_of_256_mib(suffix: str, tmp_path: Path) -> None:
    from support.servers import server

    with server() as running:
        run = subprocess.run(
            [sys.executable, "-c", MEMORY, str(tmp_path / f"x{suffix}"), suffix],
            input=running.address,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    grown = {line.split()[0]: int(line.split()[1]) for line in run.stdout.splitlines()}
    # 64 MiB that are requested ahead or may have to be sent again, a few tensors of 16 MiB, and
    # what the allocator keeps: well below the file.
    assert grown["save"] < 160 * 2**20
    assert grown["load"] < 160 * 2**20


DISK_ERRORS = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS]


@pytest.mark.parametrize("number", DISK_ERRORS)
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
@pytest.mark.parametrize("is_removable", [True, False])
def test_an_error_of_the_disk_names_the_file_which_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, number: int, is_removable: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    path = tmp_path / f"x{suffix}"
    value = np.ones(4, np.float32)
    br.save(path, value if suffix == ".npy" else {"x": value})
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", fail)
    if not is_removable:
        monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(OSError, match=re.escape(f"{os.strerror(number)}: '{path}'")) as caught:
        br.save(path, 2 * value if suffix == ".npy" else {"x": 2 * value})
    assert caught.value.errno == number
    assert path.read_bytes() == before
    assert (len([*tmp_path.iterdir()]) == 1) == is_removable


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="the system limits no file sizes")
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_a_write_beyond_the_limit_of_the_process_leaves_no_part(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"x{suffix}"
    program = f"""
import resource, signal
import numpy as np
import burn_remote as br
path, value = {str(path)!r}, np.ones(100_000, np.float32)
br.save(path, value[:10] if path.endswith("npy") else {{"x": value[:10]}})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    br.save(path, value if path.endswith("npy") else {{"x": value}})
except OSError as error:
    assert error.filename == path, error
else:
    raise AssertionError
assert br.load(path, device="local") is not None
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [*tmp_path.iterdir()] == [path]
