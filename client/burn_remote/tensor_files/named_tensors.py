"""Tensors of files by their dotted names: the functions that all file formats share."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import secrets
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import numpy as np

from burn_remote.arguments.arrays import AnyDType, Array, as_array, as_dtype, numpy_dtype
from burn_remote.arguments.containers import MAX_DEPTH, named_leaves
from burn_remote.functions.casting import astype
from burn_remote.functions.creation import tensor
from burn_remote.functions.tensor_value import is_tensor
from burn_remote.tensor_files.safetensors_header import InvalidCheckpoint, StoredTensor
from burn_remote_protocol.errors import ArgumentMismatch, DTypeMismatch, shown, type_name

if TYPE_CHECKING:
    from burn_remote.functions.device_class import AnyDevice
    from burn_remote.functions.tensor import Tensor
    from burn_remote_protocol.dtypes import DType

__all__ = [
    "arrays_of",
    "by_name",
    "check_like",
    "in_dtype",
    "nested_by_dots",
    "replaced_file",
    "selected",
    "sent_to_device",
    "writable",
]

# Bytes of tensors that are requested from servers before the first is written: enough to hide the
# round trips, and a bound on the memory.
WINDOW_BYTES: Final = 64 * 1024 * 1024


def by_name(tree: Any) -> dict[str, Any]:
    """Return the leaves of containers by their dotted names.

    Raises ``ArgumentMismatch`` for a leaf in no container, and for two leaves with the same name.
    """
    found: dict[str, Any] = {}
    for name, leaf in named_leaves(tree):
        if not name:
            raise ArgumentMismatch("a tensor needs a name; write {'name': tensor}")
        if name in found:
            raise ArgumentMismatch(f"two leaves have the name {name!r}; rename a key with a dot")
        found[name] = leaf
    return found


def writable(name: str, leaf: Any) -> Any:
    """Return a leaf as a tensor or an array that a file can hold.

    Raises ``DTypeMismatch`` for quantized tensors, and ``ArgumentMismatch`` for anything but
    tensors, arrays and numbers.
    """
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
        f"{name} is of type {type_name(leaf)}; leaves are tensors, arrays and numbers"
    )


class Stored(Protocol):
    """A tensor in a file."""

    @property
    def name(self) -> str:
        """Its dotted name."""
        ...

    @property
    def nbytes(self) -> int:
        """The size of its elements in bytes."""
        ...


S = TypeVar("S", bound=Stored)


def arrays_of(stored: Iterable[S], leaves: Mapping[str, Any]) -> Iterator[tuple[S, Array]]:
    """Iterate over the elements of tensors, and request further ones meanwhile."""
    waiting: deque[tuple[S, Any]] = deque()
    held = 0
    for one in stored:
        leaf = leaves[one.name]
        waiting.append((one, leaf.read() if is_tensor(leaf) else leaf))
        held += one.nbytes
        while waiting and held > WINDOW_BYTES:
            first, array = waiting.popleft()
            yield first, array if isinstance(array, np.ndarray) else array.result()
            held -= first.nbytes
    while waiting:
        first, array = waiting.popleft()
        yield first, array if isinstance(array, np.ndarray) else array.result()


def selected(
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


def check_like(one: StoredTensor, model: Any) -> None:
    """Raise ``InvalidCheckpoint`` if a tensor of a file cannot replace a leaf of ``like=``.

    Raises ``ArgumentMismatch`` if the leaf is neither a tensor nor a number.
    """
    if is_tensor(model):
        is_integer = not model.dtype.is_floating
        if model.shape != one.spec.shape or (is_integer and one.spec.dtype.is_floating):
            raise InvalidCheckpoint(
                f"{shown(one.name)} is {one.spec} in the file, but {model.handle.spec} in like="
            )
    elif not isinstance(model, bool | int | float):
        raise ArgumentMismatch(
            f"{one.name} in like= is of type {type_name(model)}; leaves are tensors and numbers"
        )
    elif one.spec.shape:
        raise InvalidCheckpoint(
            f"{shown(one.name)} is {one.spec} in the file, but a number in like="
        )


def sent_to_device(
    name: str, array: Array, model: Any, device: AnyDevice | None, dtype: AnyDType | None
) -> Any:
    """Send an array of a file to a device; return its tensor, in ``dtype`` if it has floats.

    If ``model``, a leaf of ``like=``, is given, it determines the dtype and the default device. For
    a number, return a number of its type.
    """
    if model is not None and not is_tensor(model):
        return _number_like(model, array, name)
    place = model.device if model is not None and device is None else device
    made = tensor(array, device=place)
    if model is not None:
        _check_range(name, array, model.dtype)
        return astype(made, model.dtype)
    return in_dtype(made, dtype)


def in_dtype(made: Tensor, dtype: AnyDType | None) -> Tensor:
    """Convert a floating-point tensor to ``dtype``; return any other tensor itself."""
    if dtype is None or not made.dtype.is_floating:
        return made
    return astype(made, as_dtype(dtype))


def _number_like(model: bool | int | float, array: Array, name: str) -> bool | int | float:
    """Convert a number of a file to the type of ``model``.

    Raises ``InvalidCheckpoint`` if that would change its value.
    """
    found = array.item()
    if not isinstance(model, float) and not (math.isfinite(found) and type(model)(found) == found):
        raise InvalidCheckpoint(
            f"{shown(name)} is {found} in the file, but {model!r}, of type "
            f"{type_name(model)}, in like="
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


def nested_by_dots(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dictionaries, whose keys are the parts of dotted names.

    Raises ``InvalidCheckpoint`` if one name is the beginning of another, or has too many dots.
    """
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


# Errors of a full or failing disk, of a quota, and of a limit on the size of files. If a write
# raises them, they have no name of a file.
_DISK_ERRORS: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE}
)


@contextlib.contextmanager
def replaced_file(target: Path) -> Iterator[Any]:
    """Yield a new file, which takes the place of ``target`` at the end.

    Errors of the disk name ``target``; the caller does not know the temporary file.
    """
    # Not opened by ``tempfile``, so that the file has the permissions of an ordinary new file. They
    # follow from the umask, which cannot be read without changing it for all threads.
    name = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        opened = name.open("xb")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from None
    try:
        with opened as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        name.replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):  # it may not exist, or the disk may have failed
            name.unlink()
        if isinstance(error, OSError) and (
            error.filename == str(name) or (error.filename is None and error.errno in _DISK_ERRORS)
        ):
            raise OSError(error.errno, error.strerror, str(target)) from None
        raise
