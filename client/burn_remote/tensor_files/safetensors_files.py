"""Loading and saving of safetensors files, one tensor after the other."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from burn_remote.arguments.arrays import (
    AnyDType,
    Array,
    data_from,
    numpy_dtype,
)
from burn_remote.arguments.containers import mapped, named_leaves
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.default_device import default_device
from burn_remote.functions.device_class import checked_device
from burn_remote.functions.shared_uploads import send_shared
from burn_remote.functions.tensor import Tensor
from burn_remote.functions.tensor_value import is_tensor
from burn_remote.tensor_files.named_tensors import (
    arrays_of,
    by_name,
    check_like,
    in_dtype,
    nested_by_dots,
    replaced_file,
    selected,
    sent_to_device,
    writable,
)
from burn_remote.tensor_files.progress import Progress, Report, reported
from burn_remote.tensor_files.safetensors_header import (
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    InvalidCheckpoint,
    StoredTensor,
    header_of,
    parsed_header,
)
from burn_remote_protocol.errors import ArgumentMismatch

if TYPE_CHECKING:
    from burn_remote.functions.device_class import AnyDevice
    from burn_remote_protocol.tensors import TensorData

__all__ = ["load_safetensors", "safetensors_metadata", "save_safetensors"]

# Bytes that are read or written between two reports of progress.
BLOCK_BYTES: Final = 8 * 1024 * 1024


@explained
def load_safetensors(
    path: str | os.PathLike[str],
    *,
    device: AnyDevice | None = None,
    names: Iterable[str] | None = None,
    dtype: AnyDType | None = None,
    nested: bool = False,
    like: Any = None,
    progress: Progress = None,
    share: bool = False,
) -> Any:
    """Send the tensors of a safetensors file to a device; return them by name.

    The client holds one tensor at a time, and waits only while the connection is full.

    ``names`` selects tensors. ``dtype`` converts floating-point tensors on the device. ``nested``
    splits names at their dots: ``"layers.0.weight"`` is in ``["layers"]["0"]["weight"]``. ``like``
    are containers (see ``burn_remote.tree``), and the result has the same containers. Each tensor
    in them is replaced by the file's tensor of its dotted name, on its device and in its dtype, and
    each number by a number. The file may have further tensors.

    ``progress`` is a function that gets a name, the bytes done and all bytes, or a bool: whether to
    show a bar. By default, a bar is shown after a second, in a terminal or a notebook, if rich is
    installed.

    ``share`` is that of ``burn_remote.load``. It cannot be used together with ``like``.

    Raises ``InvalidCheckpoint`` if the file is not valid, which is checked before anything is
    allocated, or lacks a tensor; and ``OSError``.
    """
    _check_options(names, dtype, nested, like, share)
    models = {} if like is None else by_name(like)
    with _opened(path) as (file, start, stored, _):
        if like is not None or names is not None:
            stored = selected(path, stored, models if like is not None else {*(names or ())})
        for one in stored:
            if like is not None:
                check_like(one, models[one.name])
        place = device if device is not None or like is not None else default_device()
        found: dict[str, Any] = {}
        total = sum(one.nbytes for one in stored)
        if share:
            assert place is not None  # without like= it is known
            handles = send_shared(
                checked_device(place).runners,
                [one.spec for one in stored],
                lambda: _elements(path, file, start, stored, progress),
            )
            for one, handle in zip(stored, handles, strict=True):
                found[one.name] = in_dtype(Tensor(handle), dtype)
            return nested_by_dots(found) if nested else found
        with reported(progress, f"loading {Path(path).name}", total) as report:
            done = 0
            for one in stored:
                array = _read(file, start, one, report, done, total)
                done += one.nbytes
                found[one.name] = sent_to_device(
                    one.name, array, models.get(one.name), place, dtype
                )
    if like is not None:
        ordered = iter([found[name] for name, _ in named_leaves(like)])
        return mapped(lambda _: next(ordered), like)
    return nested_by_dots(found) if nested else found


@explained
def save_safetensors(
    path: str | os.PathLike[str],
    tree: Any,
    *,
    metadata: Mapping[str, str] | None = None,
    progress: Progress = None,
) -> None:
    """Wait for tensors in containers, and save them under their dotted names.

    ``tree`` has tensors, NumPy arrays and numbers as leaves: for example ``{"params": params,
    "state": state}``, which ``load_safetensors(path, like=…)`` restores. ``None`` is left out. The
    name of ``tree["layers"][0].weight`` is ``"layers.0.weight"``. A file that exists is replaced at
    the end, in one step; on an error, it stays as it was. ``progress`` is that of
    ``load_safetensors``.

    Raises ``DTypeMismatch`` for quantized tensors, ``ArgumentMismatch`` for other leaves and for
    two of the same name, and ``OSError``.
    """
    leaves = {name: writable(name, leaf) for name, leaf in by_name(tree).items()}
    specs = {
        name: leaf.handle.spec if is_tensor(leaf) else data_from(leaf).spec
        for name, leaf in leaves.items()
    }
    header, stored = header_of(specs, metadata or {})
    target = Path(path)
    total = sum(one.nbytes for one in stored)
    with (
        replaced_file(target) as file,
        reported(progress, f"saving {target.name}", total) as report,
    ):
        file.write(header)
        done = 0
        for one, array in arrays_of(stored, leaves):
            content = data_from(array.astype(np.bool_) if one.spec.dtype.is_bool else array).bytes
            for place in range(0, len(content), BLOCK_BYTES):
                file.write(content[place : place + BLOCK_BYTES])
                report(one.name, done + min(place + BLOCK_BYTES, len(content)), total)
            done += one.nbytes


def safetensors_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the metadata of a safetensors file, which maps texts to texts.

    Raises ``InvalidCheckpoint`` if the file is not valid, and ``OSError``.
    """
    with _opened(path) as (_, _, _, metadata):
        return metadata


@contextlib.contextmanager
def _opened(
    path: str | os.PathLike[str],
) -> Iterator[tuple[io.BufferedReader, int, list[StoredTensor], dict[str, str]]]:
    """Open a file; yield it, the offset of the elements, its tensors, and its metadata."""
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < LENGTH_BYTES:
            raise InvalidCheckpoint(f"{path} has {size} bytes, too few for a safetensors file")
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        start = LENGTH_BYTES + length
        try:
            # The size of the file does not bound ``length``: a sparse file can have any size
            # without taking space on the disk.
            is_readable = start <= size and length <= MAX_HEADER_BYTES
            header = file.read(length) if is_readable else b""
            stored, metadata = parsed_header(length, header, size - start)
        except InvalidCheckpoint as error:
            raise InvalidCheckpoint(f"{path}: {error}") from None
        yield file, start, stored, metadata


def _check_options(
    names: Iterable[str] | None, dtype: AnyDType | None, nested: bool, like: Any, share: bool
) -> None:
    if like is not None and (names is not None or nested or dtype is not None):
        raise ArgumentMismatch(
            "like= determines the names, the containers and the dtypes; omit names=, nested= and "
            "dtype="
        )
    if share and like is not None:
        raise ArgumentMismatch("share=True and like= cannot be used together; omit one of them")
    if isinstance(names, str):
        raise ArgumentMismatch(f"names must be a list of names; write [{names!r}]")


def _elements(
    path: str | os.PathLike[str],
    file: io.BufferedReader,
    start: int,
    stored: Sequence[StoredTensor],
    progress: Progress,
) -> Iterator[TensorData]:
    """Yield the elements of tensors one by one, without keeping them."""
    total = sum(one.nbytes for one in stored)
    with reported(progress, f"loading {Path(path).name}", total) as report:
        done = 0
        for one in stored:
            yield data_from(_read(file, start, one, report, done, total))
            done += one.nbytes


def _read(
    file: io.BufferedReader, start: int, one: StoredTensor, report: Report, done: int, total: int
) -> Array:
    array = np.empty(one.spec.shape, numpy_dtype(one.spec.dtype))
    content = array.reshape(-1).view(np.uint8).data
    file.seek(start + one.offset)
    for place in range(0, one.nbytes, BLOCK_BYTES):
        block = content[place : place + BLOCK_BYTES]
        if file.readinto(block) != len(block):
            raise InvalidCheckpoint(f"the file became shorter while {one.name} was read")
        report(one.name, done + place + len(block), total)
    if sys.byteorder == "big":
        array.byteswap(inplace=True)
    if one.spec.dtype.is_bool:
        # In NumPy, an element of a bool array must be the byte 0 or 1.
        array = array.view(np.uint8) != 0
    return array
