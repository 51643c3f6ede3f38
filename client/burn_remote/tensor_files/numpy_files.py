"""Loading and saving of NumPy's files: ``.npy`` with one array, ``.npz`` with several by name.

NumPy's own functions parse and write the headers. Elements are read and written block by block: the
client holds one array of a file at a time, and never both the file and its elements. Arrays of
objects are refused, because only pickle could load them.
"""

from __future__ import annotations

import errno
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.lib import format as npy

from burn_remote.arguments.arrays import Array, as_dtype, data_from
from burn_remote.functions.creation import tensor
from burn_remote.functions.default_device import default_device
from burn_remote.functions.device_class import checked_device
from burn_remote.functions.shared_uploads import send_shared
from burn_remote.functions.tensor import Tensor
from burn_remote.functions.tensor_value import is_tensor
from burn_remote.tensor_files.named_tensors import (
    arrays_of,
    by_name,
    replaced_file,
    writable,
)
from burn_remote.tensor_files.progress import Progress, Report, reported
from burn_remote.tensor_files.safetensors_header import InvalidCheckpoint
from burn_remote_protocol import dtypes
from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import BurnRemoteError, DTypeMismatch, shown
from burn_remote_protocol.tensors import MAX_ELEMENTS, MAX_RANK, TensorSpec

if TYPE_CHECKING:
    from burn_remote.functions.device_class import AnyDevice
    from burn_remote_protocol.tensors import TensorData

__all__ = [
    "load_npy",
    "load_npz",
    "members_by_name",
    "open_archive",
    "parsed_npy_header",
    "save_npy",
    "save_npz",
]

# Bytes that are read or written between two reports of progress. A member of an archive is copied
# a few times on its way, so a larger block would take several times its size.
BLOCK_BYTES: Final = 1024 * 1024

# NumPy's own bound on a header that it parses as a Python literal.
MAX_HEADER_BYTES: Final = 10_000
MAX_MEMBERS: Final = 2**17
# NumPy's compression methods, with the most bytes that one compressed byte can give
# (https://zlib.net/zlib_tech.html). A member that claims more is invalid. Other methods are
# refused: LZMA has no such bound, and allocates up to 4 GiB on a claim in a member's first bytes.
MAX_RATIOS: Final = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: 1032}

# Dtypes that NumPy's files do not name: they would be loaded as raw bytes or as another dtype.
_UNNAMED: Final = frozenset({dtypes.BF16, dtypes.FLEX32})


# What NumPy raises for a header, which it parses as a Python literal of at most 10,000 bytes.
_INVALID_HEADER: Final = (
    EOFError,
    MemoryError,
    OSError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
    Warning,  # of old names of dtypes, if the program turns warnings into errors
    tokenize.TokenError,
)


class NpyHeader(NamedTuple):
    """The contents of the header of a ``.npy`` file."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """The size of the elements in bytes."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def is_possible(self) -> bool:
        """Whether an array can have this shape. Axes of size 0 count as 1, as NumPy counts them."""
        return self.dtype.itemsize * math.prod([one or 1 for one in self.shape]) <= MAX_ELEMENTS


class _Named(NamedTuple):
    name: str
    nbytes: int


def load_npy(
    path: str | os.PathLike[str],
    *,
    device: AnyDevice | None = None,
    progress: Progress = None,
    share: bool = False,
) -> Tensor:
    """Send the array of a ``.npy`` file to a device; see ``burn_remote.load``."""
    place = default_device() if device is None else device
    with Path(path).open("rb") as file:
        header = _header(file, str(path))
        left = os.fstat(file.fileno()).st_size - file.tell()
        if left < header.nbytes:
            raise InvalidCheckpoint(
                f"{path} has {left:,} bytes of elements, but its header says {header.nbytes:,}"
            )
        with reported(progress, f"loading {Path(path).name}", header.nbytes) as report:
            array = _elements(file, header, str(path), report, 0, header.nbytes)
            return tensor(array, device=place, share=share)


def load_npz(
    path: str | os.PathLike[str],
    *,
    device: AnyDevice | None = None,
    progress: Progress = None,
    share: bool = False,
) -> dict[str, Tensor]:
    """Send the arrays of a ``.npz`` file to a device, by name; see ``burn_remote.load``."""
    place = checked_device(default_device() if device is None else device)
    with open_archive(path) as archive:
        members = members_by_name(archive, Path(path).stat().st_size, str(path))
        names = [*members]
        if not share:
            arrays = _arrays(archive, str(path), progress)
            return {name: tensor(next(arrays), device=place) for name in names}

        def elements() -> Iterator[TensorData]:
            return map(data_from, _arrays(archive, str(path), progress))

        specs = []
        for name, member in members.items():
            with archive.open(member) as file:
                header = _header(file, f"{path}: {shown(name)}")
            specs.append(TensorSpec(header.shape, as_dtype(header.dtype)))
        handles = send_shared(place.runners, specs, elements)
        return {name: Tensor(handle) for name, handle in zip(names, handles, strict=True)}


def members_by_name(
    archive: zipfile.ZipFile, file_bytes: int, where: str
) -> dict[str, zipfile.ZipInfo]:
    """Return the members of an archive by the names of their arrays.

    ``file_bytes`` is the size of the archive. Raises ``InvalidCheckpoint`` for members that NumPy
    could not have written.
    """
    listed = archive.infolist()
    members = {member.filename.removesuffix(".npy"): member for member in listed}
    if len(listed) > MAX_MEMBERS or len(members) != len(listed):
        raise InvalidCheckpoint(
            f"{where} has more than {MAX_MEMBERS:,} arrays, or two with the same name"
        )
    for member in listed:
        _check_member(member, file_bytes, f"{where}: {shown(member.filename)}")
    return members


def _check_member(member: zipfile.ZipInfo, file_bytes: int, where: str) -> None:
    """Raise ``InvalidCheckpoint`` unless NumPy could have written a member of such a file."""
    if member.compress_type not in MAX_RATIOS:
        raise InvalidCheckpoint(
            f"{where} has the compression method {member.compress_type}; NumPy's files are stored "
            "or deflated: np.savez writes such a file"
        )
    if member.compress_size > file_bytes:
        raise InvalidCheckpoint(
            f"{where} claims {member.compress_size:,} compressed bytes, but the file has "
            f"{file_bytes:,}"
        )


def _arrays(archive: zipfile.ZipFile, path: str, progress: Progress) -> Iterator[Array]:
    """Yield the arrays of an archive one by one, without keeping them."""
    members = archive.infolist()
    total = sum(member.file_size for member in members)
    with reported(progress, f"loading {Path(path).name}", total) as report:
        done = 0
        for member in members:
            name = member.filename.removesuffix(".npy")
            where = f"{path}: {shown(name)}"
            with archive.open(member) as file:
                header = _header(file, where)
                if header.nbytes > MAX_RATIOS[member.compress_type] * member.compress_size:
                    raise InvalidCheckpoint(
                        f"{where} has {member.compress_size:,} compressed bytes, too few for "
                        f"{header.nbytes:,}"
                    )
                yield _elements(file, header, where, report, done, total, name)
            done += member.file_size


def save_npy(path: str | os.PathLike[str], value: Any, *, progress: Progress = None) -> None:
    """Wait for one tensor, and save it as ``.npy``; see ``burn_remote.save``."""
    leaf = _named_by_numpy("the tensor", writable("the tensor", value))
    with reported(progress, f"saving {Path(path).name}", leaf.nbytes) as report:
        ((_, array),) = arrays_of([_Named("", leaf.nbytes)], {"": leaf})
        with replaced_file(Path(path)) as file:
            _write(file, array, "", report, 0, leaf.nbytes)


def save_npz(path: str | os.PathLike[str], tree: Any, *, progress: Progress = None) -> None:
    """Wait for tensors in containers, and save them as ``.npz``; see ``burn_remote.save``."""
    leaves = {
        name: _named_by_numpy(name, writable(name, leaf)) for name, leaf in by_name(tree).items()
    }
    stored = [_Named(name, leaf.nbytes) for name, leaf in leaves.items()]
    total = sum(one.nbytes for one in stored)
    with (
        reported(progress, f"saving {Path(path).name}", total) as report,
        replaced_file(Path(path)) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
    ):
        done = 0
        for one, array in arrays_of(stored, leaves):
            with archive.open(f"{one.name}.npy", "w", force_zip64=True) as member:
                _write(member, array, one.name, report, done, total)
            done += one.nbytes


def parsed_npy_header(file: IO[bytes]) -> NpyHeader:
    """Read the header of a ``.npy`` file. Raises ``InvalidCheckpoint`` with the reason."""
    try:
        version = npy.read_magic(file)
        if version == (1, 0):
            shape, is_fortran, dtype = npy.read_array_header_1_0(file, MAX_HEADER_BYTES)
        elif version in ((2, 0), (3, 0)):
            # Version 3 differs in the names of fields, which tensors do not have.
            shape, is_fortran, dtype = npy.read_array_header_2_0(file, MAX_HEADER_BYTES)
        else:
            raise InvalidCheckpoint(f"its version {version} is unknown")
    except InvalidCheckpoint:
        raise
    except _INVALID_HEADER as error:
        raise InvalidCheckpoint(f"not a .npy file: {shown(str(error))}") from None
    header = NpyHeader(shape, is_fortran, dtype)
    if dtype.hasobject:
        raise InvalidCheckpoint("it has Python objects, which only pickle could load")
    # True is an int to NumPy, but no size to a server.
    is_valid = len(shape) <= MAX_RANK and all(type(n) is int and n >= 0 for n in shape)
    if not is_valid or not header.is_possible:
        raise InvalidCheckpoint(f"a tensor cannot have the shape {shown(shape)}")
    try:
        as_dtype(dtype)
    except DTypeMismatch as error:
        raise InvalidCheckpoint(str(error)) from None
    return header


def _header(file: IO[bytes], where: str) -> NpyHeader:
    try:
        return parsed_npy_header(file)
    except InvalidCheckpoint as error:
        raise InvalidCheckpoint(f"{where}: {error}") from None
    except (zipfile.BadZipFile, zlib.error) as error:
        raise InvalidCheckpoint(f"{where}: {error}") from None


def _elements(
    file: IO[bytes],
    header: NpyHeader,
    where: str,
    report: Report,
    done: int,
    total: int,
    name: str = "",
) -> Array:
    array = np.empty(header.shape, header.dtype, order="F" if header.is_fortran else "C")
    content = array.reshape(-1, order="A").view(np.uint8).data
    for place in range(0, len(content), BLOCK_BYTES):
        block = content[place : place + BLOCK_BYTES]
        try:
            count = file.readinto(block)  # type: ignore[attr-defined]  # buffered: all or the end
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise InvalidCheckpoint(f"{where}: {error}") from None
        if count != len(block):
            raise InvalidCheckpoint(f"{where} ends before the last element")
        report(name, done + place + len(block), total)
    if header.dtype.kind == "b":
        # In NumPy, an element of a bool array must be the byte 0 or 1.
        np.not_equal(array.view(np.uint8), 0, out=array)
    return array


def _write(file: IO[bytes], array: Array, name: str, report: Report, done: int, total: int) -> None:
    ordered = np.asarray(array, order="C")
    npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(ordered))
    content = ordered.reshape(-1).view(np.uint8).data
    for place in range(0, len(content), BLOCK_BYTES):
        file.write(content[place : place + BLOCK_BYTES])
        report(name, done + min(place + BLOCK_BYTES, len(content)), total)


def _named_by_numpy(name: str, leaf: Any) -> Any:
    dtype: DType = leaf.dtype if is_tensor(leaf) else as_dtype(leaf.dtype)
    if dtype in _UNNAMED:
        raise DTypeMismatch(
            f"{name} is {dtype}, which NumPy's files cannot name; write x.astype('float32'), or "
            "save a file with the suffix .safetensors"
        )
    return leaf


# What ``zipfile`` raises for an invalid archive. RuntimeError: a member is encrypted.
# OSError with EINVAL: a member begins before the file does.
_INVALID_ARCHIVE: Final = (
    zipfile.BadZipFile,
    NotImplementedError,
    OSError,
    RuntimeError,
    UnicodeDecodeError,
)


@contextmanager
def open_archive(
    path: str | os.PathLike[str], file: IO[bytes] | None = None
) -> Iterator[zipfile.ZipFile]:
    """Open the archive at ``path`` or, if it is given, in ``file``. Errors name ``path``.

    Errors of ``zipfile``, also inside the ``with`` statement, become ``InvalidCheckpoint``.
    """
    try:
        archive = zipfile.ZipFile(path if file is None else file)
    except ValueError as error:
        raise InvalidCheckpoint(f"{path}: {error}") from None
    except _INVALID_ARCHIVE as error:
        raise _invalid(path, error) from None
    with archive:
        try:
            yield archive
        except BurnRemoteError:
            raise
        except _INVALID_ARCHIVE as error:
            raise _invalid(path, error) from None


def _invalid(path: str | os.PathLike[str], error: Exception) -> Exception:
    """Translate an error of ``zipfile``; return an error of the system unchanged."""
    if isinstance(error, OSError) and error.errno != errno.EINVAL:
        return error
    return InvalidCheckpoint(f"{path}: {shown(str(error))}")
