"""Loading and saving of safetensors files, one tensor after the other."""

from __future__ import annotations

import contextlib
import io
import math
import os
import secrets
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from burn_remote.arguments.arrays import (
    AnyDType,
    Array,
    as_array,
    as_dtype,
    data_from,
    numpy_dtype,
)
from burn_remote.arguments.containers import MAX_DEPTH, mapped, named_leaves
from burn_remote.checkpoints.progress import Progress, Report, reported
from burn_remote.checkpoints.safetensors_header import (
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    InvalidCheckpoint,
    StoredTensor,
    header_of,
    parsed_header,
)
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.casting import astype
from burn_remote.functions.creation import tensor
from burn_remote.functions.default_device import default_device
from burn_remote.functions.value import is_tensor
from burn_remote_protocol.errors import ArgumentMismatch, DTypeMismatch, shown

if TYPE_CHECKING:
    from burn_remote.functions.device_class import AnyDevice
    from burn_remote_protocol.dtypes import DType

__all__ = ["load_safetensors", "safetensors_metadata", "save_safetensors"]

# Bytes that are read or written between two reports of progress.
BLOCK_BYTES: Final = 8 * 1024 * 1024

# Bytes of tensors that are requested from servers before the first is written: enough to hide the
# round trips, and a bound on the memory.
WINDOW_BYTES: Final = 64 * 1024 * 1024


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
) -> Any:
    """Send the tensors of a safetensors file to a device; return them by name.

    The client holds one tensor at a time, and waits only while the connection is full.

    ``names`` selects tensors. ``dtype`` converts floating-point tensors on the device. ``nested``
    splits names at their dots: ``"layers.0.weight"`` is in ``["layers"]["0"]["weight"]``. ``like``
    are containers (see ``burn_remote.tree``), and the result has the same containers. Each tensor
    in them is replaced by the file's tensor of its dotted name, on its device and in its dtype, and
    each number by a number. The file may have further tensors.

    ``progress`` is a function that gets a name, the bytes done and all bytes, or a bool: whether to
    show a bar. By default, a bar is shown in a terminal for 128 MiB and more, if rich is installed.

    Raises ``InvalidCheckpoint`` if the file is not valid, which is checked before anything is
    allocated, or lacks a tensor; and ``OSError``.
    """
    if like is not None and (names is not None or nested or dtype is not None):
        raise ArgumentMismatch("like= determines the names, the containers and the dtypes")
    if isinstance(names, str):
        raise ArgumentMismatch(f"names must list names; write [{names!r}]")
    models = {} if like is None else _by_name(like)
    with _opened(path) as (file, start, stored, _):
        if like is not None or names is not None:
            stored = _selected(path, stored, models if like is not None else {*(names or ())})
        for one in stored:
            if like is not None:
                _check_like(one, models[one.name])
        place = device if device is not None or like is not None else default_device()
        found: dict[str, Any] = {}
        total = sum(one.nbytes for one in stored)
        with reported(progress, f"loading {Path(path).name}", total) as report:
            done = 0
            for one in stored:
                array = _read(file, start, one, report, done, total)
                done += one.nbytes
                found[one.name] = _sent(one.name, array, models.get(one.name), place, dtype)
    if like is not None:
        ordered = iter([found[name] for name, _ in named_leaves(like)])
        return mapped(lambda _: next(ordered), like)
    return _nested(found) if nested else found


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
    leaves = {name: _writable(name, leaf) for name, leaf in _by_name(tree).items()}
    specs = {
        name: leaf.handle.spec if is_tensor(leaf) else data_from(leaf).spec
        for name, leaf in leaves.items()
    }
    header, stored = header_of(specs, metadata or {})
    target = Path(path)
    total = sum(one.nbytes for one in stored)
    with (
        _replacement(target) as file,
        reported(progress, f"saving {target.name}", total) as report,
    ):
        file.write(header)
        done = 0
        for one, array in _arrays(stored, leaves):
            content = data_from(array.astype(np.bool_) if one.spec.dtype.is_bool else array).bytes
            for place in range(0, len(content), BLOCK_BYTES):
                file.write(content[place : place + BLOCK_BYTES])
                report(one.name, done + min(place + BLOCK_BYTES, len(content)), total)
            done += one.nbytes


def safetensors_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the metadata of a safetensors file, which maps texts to texts."""
    with _opened(path) as (_, _, _, metadata):
        return metadata


@contextlib.contextmanager
def _opened(
    path: str | os.PathLike[str],
) -> Iterator[tuple[io.BufferedReader, int, list[StoredTensor], dict[str, str]]]:
    """Open a file; yield it, where elements begin, its tensors, and its metadata."""
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < LENGTH_BYTES:
            raise InvalidCheckpoint(f"{path} has {size} bytes, too few for a safetensors file")
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        start = LENGTH_BYTES + length
        try:
            # Not by claim: a sparse file has any size and takes no room on the disk.
            is_readable = start <= size and length <= MAX_HEADER_BYTES
            header = file.read(length) if is_readable else b""
            stored, metadata = parsed_header(length, header, size - start)
        except InvalidCheckpoint as error:
            raise InvalidCheckpoint(f"{path}: {error}") from None
        yield file, start, stored, metadata


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
        array = array.view(np.uint8) != 0  # other bytes are no valid elements of NumPy's bools
    return array


def _sent(
    name: str, array: Array, model: Any, device: AnyDevice | None, dtype: AnyDType | None
) -> Any:
    if model is not None and not is_tensor(model):
        return _number_like(model, array, name)
    place = model.device if model is not None and device is None else device
    made = tensor(array, device=place)
    if model is not None:
        _check_range(name, array, model.dtype)
        return astype(made, model.dtype)
    if dtype is not None and made.dtype.is_floating:
        return astype(made, as_dtype(dtype))
    return made


def _number_like(model: bool | int | float, array: Array, name: str) -> bool | int | float:
    """Return a number of a file as the type of ``model``, if that is the same number."""
    found = array.item()
    if not isinstance(model, float) and not (math.isfinite(found) and type(model)(found) == found):
        raise InvalidCheckpoint(
            f"{shown(name)} is {found} in the file, but {model!r}, of type "
            f"{type(model).__name__}, in like="
        )
    return type(model)(found)


def _check_range(name: str, array: Array, wanted: DType) -> None:
    """Raise ``InvalidCheckpoint`` for integers that a narrower dtype would change."""
    if not (wanted.is_integer and array.size) or np.can_cast(array.dtype, numpy_dtype(wanted)):
        return
    bounds = np.iinfo(numpy_dtype(wanted))
    least, most = int(array.min()), int(array.max())
    if least < bounds.min or most > bounds.max:
        raise InvalidCheckpoint(
            f"{shown(name)} has integers from {least} to {most} in the file, but {wanted} in like="
        )


def _selected(
    path: str | os.PathLike[str], stored: list[StoredTensor], wanted: Collection[str]
) -> list[StoredTensor]:
    """Return the wanted tensors of a file. Raises ``InvalidCheckpoint`` if it lacks one."""
    missing = sorted({*wanted} - {one.name for one in stored})
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        has = ", ".join(shown(one.name) for one in stored[:5])
        raise InvalidCheckpoint(
            f"{path} has no tensor {', '.join(map(repr, missing[:3]))}{more}; it has "
            f"{len(stored)}: {has}{', …' if len(stored) > 5 else ''}"
        )
    return [one for one in stored if one.name in wanted]


def _check_like(one: StoredTensor, model: Any) -> None:
    if is_tensor(model):
        is_integer = not model.dtype.is_floating
        if model.shape != one.spec.shape or (is_integer and one.spec.dtype.is_floating):
            raise InvalidCheckpoint(
                f"{shown(one.name)} is {one.spec} in the file, but {model.handle.spec} in like="
            )
    elif not isinstance(model, bool | int | float):
        raise ArgumentMismatch(
            f"{one.name} in like= is a {type(model).__name__}; leaves are tensors and numbers"
        )
    elif one.spec.shape:
        raise InvalidCheckpoint(
            f"{shown(one.name)} is {one.spec} in the file, but a number in like="
        )


def _by_name(tree: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, leaf in named_leaves(tree):
        if not name:
            raise ArgumentMismatch("a tensor needs a name; write {'name': tensor}")
        if name in found:
            raise ArgumentMismatch(f"two leaves have the name {name!r}; rename a key with a dot")
        found[name] = leaf
    return found


def _writable(name: str, leaf: Any) -> Any:
    if is_tensor(leaf):
        try:
            numpy_dtype(leaf.dtype)
        except DTypeMismatch as error:
            raise DTypeMismatch(f"{name}: {error}") from None
        return leaf
    if isinstance(leaf, np.ndarray):
        return as_array(leaf, None)
    if isinstance(leaf, bool | int | float | np.generic):
        return np.asarray(leaf)
    raise ArgumentMismatch(
        f"{name} is a {type(leaf).__name__}; leaves are tensors, arrays and numbers"
    )


def _arrays(
    stored: list[StoredTensor], leaves: Mapping[str, Any]
) -> Iterator[tuple[StoredTensor, Array]]:
    """Iterate over the elements of tensors, and request further ones meanwhile."""
    waiting: deque[tuple[StoredTensor, Any]] = deque()
    held = 0
    for one in stored:
        leaf = leaves[one.name]
        waiting.append((one, leaf.read() if is_tensor(leaf) else leaf))
        held += one.nbytes
        while waiting and held > WINDOW_BYTES:
            first, array = waiting.popleft()
            yield first, array if isinstance(array, np.ndarray) else array.result()
            held -= first.nbytes
    for first, array in waiting:
        yield first, array if isinstance(array, np.ndarray) else array.result()


@contextlib.contextmanager
def _replacement(target: Path) -> Iterator[Any]:
    """Yield a new file, which takes the place of ``target`` at the end."""
    # Not a file of tempfile: it has the rights of an ordinary new file, by the umask, which cannot
    # be read without changing it for all threads.
    name = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with name.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        name.replace(target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            name.unlink()
        raise


def _nested(found: Mapping[str, Any]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for name, one in found.items():
        *parents, last = name.split(".")
        if len(parents) >= MAX_DEPTH:
            raise InvalidCheckpoint(
                f"{shown(name)} cannot be nested: it has more than {MAX_DEPTH} dots"
            )
        inner = root
        for place, part in enumerate(parents):
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise InvalidCheckpoint(
                    f"{name!r} cannot be nested: {'.'.join(parents[: place + 1])!r} is a tensor"
                )
        if last in inner:
            raise InvalidCheckpoint(f"{name!r} cannot be nested: it has members too")
        inner[last] = one
    return root
