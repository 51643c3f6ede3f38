"""Files of tensors are what the format defines, and hostile ones are refused."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import burn_remote as br
from burn_remote.tensor_files import named_tensors, progress, safetensors_files, safetensors_header


@pytest.fixture
def local() -> Iterator[br.Device]:
    with br.LocalDevice() as device:
        yield device


def written(path: Path, entries: Any, data: bytes = b"", length: int | None = None) -> Path:
    """Write a file by hand."""
    header = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    size = len(header) if length is None else length
    path.write_bytes(size.to_bytes(8, "little") + header + data)
    return path


def parts(path: Path) -> tuple[dict[str, Any], bytes]:
    """Read a file by hand."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


DTYPES = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16,
    "F16": np.float16, "BF16": ml_dtypes.bfloat16, "U32": np.uint32, "I32": np.int32,
    "F32": np.float32, "U64": np.uint64, "I64": np.int64, "F64": np.float64,
}  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_each_dtype_is_read_and_written_as_the_format_says(
    name: str, local: br.Device, tmp_path: Path
) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(DTYPES[name])
    entry = {"dtype": name, "shape": [2, 3], "data_offsets": [0, array.nbytes]}
    file = written(tmp_path / "a", {"x": entry}, array.tobytes())
    found = br.load_safetensors(file, device=local)
    np.testing.assert_array_equal(found["x"].numpy(), array, strict=True)
    br.save_safetensors(tmp_path / "b", found)
    entries, data = parts(tmp_path / "b")
    assert (entries["x"], data) == (entry, array.tobytes())


class Pair(NamedTuple):
    left: Any
    right: Any


def test_containers_are_saved_under_dotted_names_and_restored(
    local: br.Device, tmp_path: Path
) -> None:
    tree = {
        "params": {
            "layers": [br.arange(6, device=local), br.ones((2, 0), device=local)],
            "no": None,
        },
        "state": Pair(7, br.full((), 2.5, dtype=br.bfloat16, device=local)),
        "rate": 0.25,
        "done": True,
        "array": np.array([1.0, 2.0]),
    }
    br.save_safetensors(tmp_path / "all", tree, metadata={"step": "7"})
    assert br.safetensors_metadata(tmp_path / "all") == {"step": "7"}
    entries, _ = parts(tmp_path / "all")
    assert {*entries} == {
        "__metadata__", "params.layers.0", "params.layers.1", "state.left", "state.right", "rate",
        "done", "array",
    }  # fmt: skip
    del tree["array"]
    found = br.load_safetensors(tmp_path / "all", like=tree)
    assert type(found["state"]) is Pair
    assert (found["state"].left, found["rate"], found["done"]) == (7, 0.25, True)
    assert found["params"]["no"] is None
    assert found["params"]["layers"][0].tolist() == [0, 1, 2, 3, 4, 5]
    assert found["params"]["layers"][1].shape == (2, 0)
    assert found["state"].right.item() == 2.5


def test_elements_of_every_tensor_are_aligned(local: br.Device, tmp_path: Path) -> None:
    tree = {
        "a": br.ones(3, dtype=br.int8, device=local),
        "b": br.ones(3, dtype=br.float64, device=local),
    }
    br.save_safetensors(tmp_path / "x", tree)
    content = (tmp_path / "x").read_bytes()
    assert int.from_bytes(content[:8], "little") % 8 == 0
    assert parts(tmp_path / "x")[0]["b"]["data_offsets"] == [0, 24]


def test_names_select_tensors_and_may_be_nested(local: br.Device, tmp_path: Path) -> None:
    tree = {"model": {"a": br.ones(2, device=local), "b": br.zeros(3, device=local)}, "c": 1}
    br.save_safetensors(tmp_path / "x", tree)
    found = br.load_safetensors(tmp_path / "x", device=local, names=["model.b"])
    assert {*found} == {"model.b"}
    nested = br.load_safetensors(tmp_path / "x", device=local, nested=True)
    assert {*nested} == {"model", "c"}
    assert nested["model"]["a"].tolist() == [1, 1]


def test_floats_are_converted_on_the_device_on_request(local: br.Device, tmp_path: Path) -> None:
    tree = {"w": br.ones(2, dtype=br.bfloat16, device=local), "ids": br.arange(2, device=local)}
    br.save_safetensors(tmp_path / "x", tree)
    found = br.load_safetensors(tmp_path / "x", device=local, dtype=br.float32)
    assert (found["w"].dtype, found["ids"].dtype) == (br.float32, br.int64)
    like = br.tree.map(lambda one: one.astype(br.float64), {"w": tree["w"]})
    assert br.load_safetensors(tmp_path / "x", like=like)["w"].dtype is br.float64


def test_other_bytes_than_0_and_1_are_true(local: br.Device, tmp_path: Path) -> None:
    entry = {"dtype": "BOOL", "shape": [3], "data_offsets": [0, 3]}
    file = written(tmp_path / "a", {"x": entry}, b"\x00\x01\x02")
    found = br.load_safetensors(file, device=local)["x"].numpy()
    assert found.view(np.uint8).tolist() == [0, 1, 1]


def test_a_file_that_becomes_shorter_while_it_is_read_is_refused(
    local: br.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors_files, "BLOCK_BYTES", 64 * 1024)
    br.save_safetensors(tmp_path / "a", {"x": br.ones(2**18, device=local)})

    def cut(name: str, done: int, total: int) -> None:
        os.truncate(tmp_path / "a", 1000)

    with pytest.raises(br.InvalidCheckpoint, match="the file became shorter while x was read"):
        br.load_safetensors(tmp_path / "a", device=local, progress=cut)


def test_a_bounded_number_of_bytes_is_requested_before_it_is_written(
    local: br.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[int] = []
    ahead: list[int] = []
    read = br.Tensor.read

    def counted(tensor: br.Tensor) -> Any:
        requested.append(tensor.nbytes)
        return read(tensor)

    def note(name: str, done: int, total: int) -> None:
        ahead.append(sum(requested) - done)

    monkeypatch.setattr(br.Tensor, "read", counted)
    monkeypatch.setattr(named_tensors, "WINDOW_BYTES", 8000)
    tensors = {f"{number}": br.ones(1000, device=local) for number in range(10)}
    br.save_safetensors(tmp_path / "a", tensors, progress=note)
    # After each of the first tensors was written, 8,000 further bytes are under way.
    assert ahead == [8000] * 8 + [4000, 0]


def test_a_file_is_on_the_disk_before_it_takes_the_place_of_another(
    local: br.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"old")
    synced: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append((tmp_path / "a").read_bytes()))
    br.save_safetensors(tmp_path / "a", {"x": br.ones(2, device=local)})
    assert synced == [b"old"]
    assert (tmp_path / "a").stat().st_size > 3


@pytest.mark.parametrize(
    ("seconds", "is_terminal", "is_notebook", "has_bar"),
    [
        (1.0, True, False, True),
        (1.0, False, True, True),
        (0.9, True, False, False),
        (1.0, False, False, False),
    ],
)
def test_a_bar_is_shown_after_a_second_in_a_terminal_or_a_notebook(
    seconds: float,
    is_terminal: bool,
    is_notebook: bool,
    has_bar: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[Any] = []

    def bar(title: str, total: int) -> Any:
        shown.append((title, total))
        return contextlib.nullcontext(lambda *report: shown.append(report))

    monkeypatch.setattr(progress, "_bar", bar)
    monkeypatch.setattr(progress, "_is_notebook", lambda: is_notebook)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    clock = iter([0.0, 0.5, seconds, 2.0]).__next__
    with progress.reported(None, "loading a", 9, clock) as report:
        report("x", 1, 9)
        report("x", 2, 9)
        report("x", 9, 9)
    assert shown == ([("loading a", 9), ("x", 2, 9), ("x", 9, 9)] if has_bar else [])


def test_progress_is_reported_up_to_the_end(local: br.Device, tmp_path: Path) -> None:
    tree = {"a": br.ones(5, device=local), "b": br.ones(3, device=local)}
    seen: list[tuple[str, int, int]] = []
    br.save_safetensors(tmp_path / "x", tree, progress=lambda *report: seen.append(report))
    assert seen == [("a", 20, 32), ("b", 32, 32)]
    seen.clear()
    br.load_safetensors(tmp_path / "x", device=local, progress=lambda *report: seen.append(report))
    assert seen == [("a", 20, 32), ("b", 32, 32)]


def test_a_bar_shows_the_tensors(
    local: br.Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    br.save_safetensors(tmp_path / "x", {"a": br.ones(5, device=local)}, progress=True)
    assert "saving x" in capsys.readouterr().err
    br.load_safetensors(tmp_path / "x", device=local)
    assert capsys.readouterr() == ("", "")


def test_a_failed_save_leaves_the_former_file(local: br.Device, tmp_path: Path) -> None:
    br.save_safetensors(tmp_path / "x", {"a": br.ones(2, device=local)})
    before = (tmp_path / "x").read_bytes()

    def interrupted(name: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        br.save_safetensors(tmp_path / "x", {"b": br.ones(2, device=local)}, progress=interrupted)
    assert (tmp_path / "x").read_bytes() == before
    assert os.listdir(tmp_path) == ["x"]


X = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HUGE = {"dtype": "U8", "shape": [2**40], "data_offsets": [0, 2**40]}

HOSTILE: dict[str, tuple[Any, bytes, int | None]] = {
    r"claims 18,446,744,073,709,551,615 bytes": (b"{}", b"", 2**64 - 1),
    r"claims 100 bytes, but the file has only": (b"{}", b"", 100),
    r"not valid JSON.*Expecting": (b"{nothing}", b"", None),
    r"not valid JSON.*codec": (b'{"\xff"}', b"", None),
    r"not valid JSON.*Extra data: \}": (b"{}}", b"", None),
    r"not valid JSON.*Expecting ','": (b'{"__metadata__":{"a":"b"', b"", None),
    r"not valid JSON.*recursion": (b'{"x":{"shape":' + b"[" * 4000 + b"}}", b"", None),
    r"entry 'a' must have.*: \{\"a\":\{": (b'{"a":' * 100_000, b"", None),
    r"entry 'a' must have.*: \[\[": (b'{"a":' + b"[" * 100_000, b"", None),
    r"is no JSON object, but 3": (b"3", b"", None),
    r"the key 'x' occurs twice": (
        b'{"x":%b,"x":%b}' % (json.dumps(X).encode(), json.dumps(X).encode()), bytes(8), None),
    r"must have dtype, shape and data_offsets": ({"x": {"dtype": "F32"}}, b"", None),
    r"entry 'x' must have.*: \[\]": ({"x": []}, b"", None),
    r"has the dtype 'F8_E4M3'; tensors hold": ({"x": X | {"dtype": "F8_E4M3"}}, bytes(8), None),
    r"has the dtype \['F32'\]": ({"x": X | {"dtype": ["F32"]}}, bytes(8), None),
    r"impossible shape: \[-1\]": ({"x": X | {"shape": [-1]}}, bytes(8), None),
    r"impossible shape: \[True\]": ({"x": X | {"shape": [True]}}, bytes(8), None),
    r"impossible shape: \[2.0\]": ({"x": X | {"shape": [2.0]}}, bytes(8), None),
    r"impossible shape: \[<": ({"x": X | {"shape": [10**40]}}, bytes(8), None),
    r"impossible shape: \[4611686018427387904": (
        {"x": X | {"shape": [2**62, 2**62, 2**62]}}, bytes(8), None),
    r"impossible shape: \[1, 1": ({"x": X | {"shape": [1] * 33}}, bytes(8), None),
    r"impossible offsets: \[0, 8, 9\]": ({"x": X | {"data_offsets": [0, 8, 9]}}, bytes(8), None),
    r"of 8 bytes, but its offsets are 4 bytes apart": (
        {"x": X | {"data_offsets": [0, 4]}}, bytes(4), None),
    r"of 8 bytes, but its offsets are -8 bytes apart": (
        {"x": X | {"data_offsets": [8, 0]}, "y": X}, bytes(8), None),
    r"'y' overlap others at 4": ({"x": X, "y": X | {"data_offsets": [4, 12]}}, bytes(12), None),
    r"'x' have a gap before others at 4": ({"x": X | {"data_offsets": [4, 12]}}, bytes(12), None),
    r"take 8 bytes, but 7 follow the header; the file is incomplete": ({"x": X}, bytes(7), None),
    r"take 8 bytes, but 9 follow the header; the file is too long": ({"x": X}, bytes(9), None),
    r"take 1,099,511,627,776 bytes, but 0 follow": ({"x": HUGE}, b"", None),
    r"__metadata__ does not map texts to texts": ({"__metadata__": {"a": 1}}, b"", None),
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_file_is_refused_before_anything_is_allocated(
    text: str, local: br.Device, tmp_path: Path
) -> None:
    file = written(tmp_path / "x", *HOSTILE[text])
    tracemalloc.start()
    try:
        with pytest.raises(br.InvalidCheckpoint, match=text):
            br.load_safetensors(file, device=local)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


def test_a_header_beyond_the_bound_is_refused(local: br.Device, tmp_path: Path) -> None:
    length = safetensors_header.MAX_HEADER_BYTES + 1
    file = written(tmp_path / "x", b" " * length)
    with pytest.raises(br.InvalidCheckpoint, match="at most 16,777,216 are read"):
        br.load_safetensors(file, device=local)
    (tmp_path / "y").write_bytes(b"abc")
    with pytest.raises(br.InvalidCheckpoint, match="has 3 bytes, too few"):
        br.load_safetensors(tmp_path / "y", device=local)


def load(change: Callable[[Any], Any], device: br.Device, path: Path, **options: Any) -> Any:
    tree = {"a.b": br.ones(2, device=device), "a": {"c": 1.5}, "n": 3}
    br.save_safetensors(path, tree)
    return br.load_safetensors(path, **change(tree), **options)


REFUSED: dict[str, tuple[type[Exception], Callable[[Any], Any]]] = {
    "has no tensor 'z'; it has 3": (
        br.InvalidCheckpoint, lambda tree: {"like": {"z": tree["a.b"]}}),
    "has no tensor 'y', 'z'": (br.InvalidCheckpoint, lambda tree: {"names": ["z", "y"]}),
    r"'a.b' is float32\[2\] in the file, but float32\[2, 1\] in like=": (
        br.InvalidCheckpoint, lambda tree: {"like": {"a.b": tree["a.b"].reshape(2, 1)}}),
    r"'a.b' is float32\[2\] in the file, but int64\[2\] in like=": (
        br.InvalidCheckpoint, lambda tree: {"like": {"a.b": tree["a.b"].astype(br.int64)}}),
    r"'a.b' is float32\[2\] in the file, but a number in like=": (
        br.InvalidCheckpoint, lambda tree: {"like": {"a.b": 3}}),
    "leaves are tensors and numbers": (br.ArgumentMismatch, lambda tree: {"like": {"n": "text"}}),
    "like= determines the names": (
        br.ArgumentMismatch, lambda tree: {"like": tree, "nested": True}),
    "write \\['a.c'\\]": (br.ArgumentMismatch, lambda tree: {"names": "a.c"}),
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_a_file_that_lacks_what_is_wanted_is_refused(
    text: str, local: br.Device, tmp_path: Path
) -> None:
    kind, change = REFUSED[text]
    with pytest.raises(kind, match=text):
        load(change, local, tmp_path / "x")


def test_names_that_cannot_be_nested_are_refused(local: br.Device, tmp_path: Path) -> None:
    x = br.ones(2, device=local)
    for tree in ({"a": x, "a.b": x}, {"a.b": x, "a": x.astype(br.float64)}):
        br.save_safetensors(tmp_path / "x", tree)
        with pytest.raises(br.InvalidCheckpoint, match="cannot be nested"):
            br.load_safetensors(tmp_path / "x", device=local, nested=True)


def test_what_cannot_be_saved_is_refused(local: br.Device, tmp_path: Path) -> None:
    x = br.ones(32, device=local)
    file = tmp_path / "x"
    with pytest.raises(br.ArgumentMismatch, match=r"two leaves have the name 'a.b'"):
        br.save_safetensors(file, {"a": {"b": x}, "a.b": x})
    with pytest.raises(br.ArgumentMismatch, match="a tensor needs a name"):
        br.save_safetensors(file, x)
    with pytest.raises(br.ArgumentMismatch, match="t is of type str; leaves are tensors"):
        br.save_safetensors(file, {"t": "text"})
    with pytest.raises(br.DTypeMismatch, match="q: NumPy has no dtype for"):
        br.save_safetensors(file, {"q": x.quantize(br.quant_scheme())})
    with pytest.raises(br.InvalidCheckpoint, match="metadata maps texts to texts"):
        br.save_safetensors(file, {"x": x}, metadata={"step": 3})  # type: ignore[dict-item]
    missing = tmp_path / "missing" / "x"
    with pytest.raises(FileNotFoundError, match=re.escape(f"directory: '{missing}'")):
        br.save_safetensors(missing, {"x": x})
    assert not os.listdir(tmp_path)


def test_numbers_keep_their_value(local: br.Device, tmp_path: Path) -> None:
    br.save_safetensors(tmp_path / "x", {"a": 2**62 + 1, "b": math.pi, "c": False})
    found = br.load_safetensors(tmp_path / "x", like={"a": 0, "b": 0.0, "c": True})
    assert found == {"a": 2**62 + 1, "b": math.pi, "c": False}


def test_a_header_of_the_claimed_size_is_not_read_from_a_sparse_file(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    size = 1 << 40
    with path.open("wb") as file:
        file.write((size - 8).to_bytes(8, "little"))
        file.truncate(size)
    with pytest.raises(br.InvalidCheckpoint, match="header claims"):
        br.load_safetensors(path)


def test_a_repeated_key_among_many_is_found_in_linear_time(tmp_path: Path) -> None:
    count = 100_000  # a search for each key would take minutes
    entry = b'{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    names = [b"%x" % number for number in range(count)]
    keys = b",".join([b'"%b":%b' % (name, entry) for name in (*names, names[-1])])
    path = written(tmp_path / "a", b"{" + keys + b"}")
    with pytest.raises(br.InvalidCheckpoint, match=f"'{count - 1:x}' occurs twice"):
        br.load_safetensors(path)


def test_metadata_may_have_any_text(local: br.Device, tmp_path: Path) -> None:
    metadata = {
        "nested": json.dumps([[{"}": "{["}]] * 10),
        'a "\\': "\n\ud7ff\N{GRINNING FACE}",
        "": "",
    }
    br.save_safetensors(tmp_path / "x", {'a{["': br.ones(2, device=local)}, metadata=metadata)
    assert br.safetensors_metadata(tmp_path / "x") == metadata
    assert br.load_safetensors(tmp_path / "x", device=local).keys() == {'a{["'}


SIZE = safetensors_header.MAX_HEADER_BYTES
# Each takes 160 to 420 MiB where the whole header is parsed at once.
LARGE: dict[str, Callable[[], bytes]] = {
    "must have dtype": lambda: _keys(b"{}", SIZE),
    "entry '0' must have": lambda: _keys(b'{"a":[],"b":[]}', SIZE),
    "entry 'a' must have": lambda: b'{"a":[' + b"999," * (SIZE // 4 - 8) + b"1]}",
    "entry 'b' must have": lambda: b'{"b":[' + b"{}," * (SIZE // 3 - 8) + b"1]}",
    "more than 16,384 texts": lambda: b'{"__metadata__":' + _keys(b'""', SIZE - 20) + b"}",
}


def _keys(value: bytes, size: int) -> bytes:
    count = size // (len(value) + 10)
    return b"{" + b",".join([b'"%x":%b' % (key, value) for key in range(count)]) + b"}"


def test_more_tensors_or_texts_than_are_read_are_neither_read_nor_written(
    local: br.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {"a": np.zeros(2), "b": np.zeros(2), "c": np.zeros(2)}
    br.save_safetensors(tmp_path / "x", tensors, metadata={"a": "b", "c": "d"})
    monkeypatch.setattr(safetensors_header, "MAX_TENSORS", 2)
    with pytest.raises(br.InvalidCheckpoint, match="more than 2 tensors"):
        br.load_safetensors(tmp_path / "x", device=local)
    with pytest.raises(br.InvalidCheckpoint, match="more than 2 tensors"):
        br.save_safetensors(tmp_path / "y", tensors)
    monkeypatch.setattr(safetensors_header, "MAX_METADATA", 1)
    with pytest.raises(br.InvalidCheckpoint, match="more than 1 texts"):
        br.safetensors_metadata(tmp_path / "x")
    with pytest.raises(br.InvalidCheckpoint, match="more than 1 texts"):
        br.save_safetensors(tmp_path / "y", {}, metadata={"a": "b", "c": "d"})


@pytest.mark.parametrize("text", LARGE)
def test_a_header_of_the_largest_size_takes_little_memory(text: str) -> None:
    header = LARGE[text]()
    assert SIZE // 2 < len(header) <= SIZE
    tracemalloc.start()
    try:
        with pytest.raises(br.InvalidCheckpoint, match=text):
            safetensors_header.parsed_header(len(header), header, 0)
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [[0, 2**62], [2**62, 0, 2**62]])
def test_empty_tensors_with_huge_axes_are_refused(
    shape: list[int], local: br.Device, tmp_path: Path
) -> None:
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
    with pytest.raises(br.InvalidCheckpoint, match="impossible shape"):
        br.load_safetensors(written(tmp_path / "a", {"x": entry}), device=local)


def test_names_that_no_file_can_have_are_refused(local: br.Device, tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    path = written(tmp_path / "a", {"\ud800": entry}, bytes(4))
    with pytest.raises(br.InvalidCheckpoint, match="not valid Unicode"):
        br.load_safetensors(path, device=local)
    for name, text in (("\ud800", "not valid Unicode"), ("__metadata__", "no tensor can have")):
        with pytest.raises(br.InvalidCheckpoint, match=text):
            br.save_safetensors(tmp_path / "b", {name: np.ones(1)})
    with pytest.raises(br.InvalidCheckpoint, match="metadata is not valid Unicode"):
        br.save_safetensors(tmp_path / "b", {"x": np.ones(1)}, metadata={"a": "\ud800"})
    assert not (tmp_path / "b").exists()


def test_names_of_many_dots_are_not_nested(local: br.Device, tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    path = written(tmp_path / "a", {".".join("x" * 5000): entry}, bytes(4))
    assert len(br.load_safetensors(path, device=local)) == 1
    with pytest.raises(br.InvalidCheckpoint, match="more than 32 dots"):
        br.load_safetensors(path, device=local, nested=True)


@pytest.mark.parametrize(
    ("stored", "model"),
    [(2.75, 1), (math.nan, 1), (math.inf, 1), (5, True), (-1, False)],
)
def test_like_refuses_numbers_that_would_change(
    stored: float, model: float, local: br.Device, tmp_path: Path
) -> None:
    br.save_safetensors(tmp_path / "a", {"x": stored})
    with pytest.raises(br.InvalidCheckpoint, match="in like="):
        br.load_safetensors(tmp_path / "a", like={"x": model}, device=local)


def test_like_refuses_integers_outside_of_its_dtype(local: br.Device, tmp_path: Path) -> None:
    like = {"x": br.zeros(2, dtype=br.int32, device=local)}
    br.save_safetensors(tmp_path / "a", {"x": np.array([1, 2**40])})
    with pytest.raises(br.InvalidCheckpoint, match=f"integers from 1 to {2**40} in the file"):
        br.load_safetensors(tmp_path / "a", like=like)
    br.save_safetensors(tmp_path / "a", {"x": np.array([-(2**31), 2**31 - 1])})
    found = br.load_safetensors(tmp_path / "a", like=like)
    np.testing.assert_array_equal(found["x"].numpy(), [-(2**31), 2**31 - 1])
