"""Loading of a server's own files: the client reads their headers, the server their elements.

The server knows no format. The client asks the server for a tensor of the file's first bytes, reads
it, and parses the header as that of a local file. Then it asks for one tensor per range of bytes.
"""

from __future__ import annotations

import builtins
import errno
import io
import struct
import zipfile
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from burn_remote.arguments.arrays import AnyDType, as_dtype
from burn_remote.functions.default_device import default_device
from burn_remote.functions.device_class import checked_device
from burn_remote.functions.manipulation import permute_dims
from burn_remote.functions.tensor import Tensor
from burn_remote.functions.tensor_value import read
from burn_remote.runner.storage_tasks import DescribeFile, LoadRange
from burn_remote.sessions.native.native_session import NativeSession
from burn_remote.tensor_files.named_tensors import in_dtype, nested_by_dots, selected
from burn_remote.tensor_files.numpy_files import MAX_HEADER_BYTES as MAX_NPY_BYTES
from burn_remote.tensor_files.numpy_files import members_by_name, open_archive, parsed_npy_header
from burn_remote.tensor_files.safetensors_header import (
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    InvalidCheckpoint,
    parsed_header,
)
from burn_remote_protocol.dtypes import U8
from burn_remote_protocol.errors import ArgumentMismatch, Unsupported, UsageError, shown
from burn_remote_protocol.tensors import TensorSpec

if TYPE_CHECKING:
    from burn_remote.functions.device_class import AnyDevice
    from burn_remote.runner.interface import RunnerClient

__all__ = ["load_server_npy", "load_server_npz", "load_server_safetensors"]

# The size of the first read, in which the headers of most models fit, so that one round trip
# suffices. Its bytes count in the session's quota until they have been read.
FIRST_BYTES: Final = 64 * 1024

# The size and the version of a file.
_FACTS: Final = struct.Struct("<QQ")
# The header before each member of an archive: its signature, and the lengths of the name and of the
# extra field that follow it.
_LOCAL: Final = struct.Struct("<4s22xHH")


class _ServerFile(NamedTuple):
    """A file of a server, in one version."""

    client: RunnerClient
    name: str
    size: int
    version: int

    def tensor(self, spec: TensorSpec, offset: int) -> Tensor:
        """Have the server make a tensor of the bytes from ``offset`` on. Does not wait."""
        (handle,) = self.client.create_empty_handles([spec])
        self.client.storage_task(LoadRange(self.name, self.version, offset), [handle])
        return Tensor(handle)

    def bytes(self, offset: int, count: int) -> bytes:
        """Wait for some bytes."""
        return self.tensor(TensorSpec((count,), U8), offset).numpy().tobytes()

    def several(self, ranges: Iterable[tuple[int, int]]) -> list[builtins.bytes]:
        """Wait for the bytes of several ranges ``(offset, count)``, in one round trip."""
        tensors = [self.tensor(TensorSpec((count,), U8), offset) for offset, count in ranges]
        return [array.tobytes() for array in read(tensors)]

    def invalid(self, reason: object) -> InvalidCheckpoint:
        """Return an error that names the file."""
        return InvalidCheckpoint(f"server:/{self.name}: {reason}")


def load_server_safetensors(
    name: str,
    *,
    device: AnyDevice | None = None,
    names: Iterable[str] | None = None,
    dtype: AnyDType | None = None,
    nested: bool = False,
    like: Any = None,
) -> dict[str, Any]:
    """Load a safetensors file of the device's server; see ``burn_remote.load``."""
    if like is not None:
        raise ArgumentMismatch(
            "like= needs the elements in this process; load a server's file without it"
        )
    if isinstance(names, str):
        raise ArgumentMismatch(f"names must be a list of names; write [{names!r}]")
    wanted = None if dtype is None else as_dtype(dtype)
    file = _found(name, device)
    if file.size < LENGTH_BYTES:
        raise file.invalid(f"it has {file.size} bytes, too few for a safetensors file")
    first = file.bytes(0, min(file.size, FIRST_BYTES))
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    start = LENGTH_BYTES + length
    header = first[LENGTH_BYTES:start]
    if len(first) < start <= file.size and length <= MAX_HEADER_BYTES:
        header += file.bytes(len(first), start - len(first))
    try:
        stored, _ = parsed_header(length, header, file.size - start)
    except InvalidCheckpoint as error:
        raise file.invalid(error) from None
    if names is not None:
        stored = selected(f"server:/{name}", stored, {*names})
    found: dict[str, Any] = {}
    for one in stored:
        found[one.name] = in_dtype(file.tensor(one.spec, start + one.offset), wanted)
    return nested_by_dots(found) if nested else found


def load_server_npy(name: str, *, device: AnyDevice | None = None) -> Tensor:
    """Load a ``.npy`` file of the device's server; see ``burn_remote.load``."""
    file = _found(name, device)
    begin = file.bytes(0, min(file.size, MAX_NPY_BYTES + 16)) if file.size else b""
    return _array(file, begin, 0, file.size, "")


def load_server_npz(name: str, *, device: AnyDevice | None = None) -> dict[str, Tensor]:
    """Load the arrays of a ``.npz`` file of the device's server; see ``burn_remote.load``.

    The directory at the end of the file costs three round trips, or four if it is larger than
    ``FIRST_BYTES``, and the headers of all arrays two more. A server decompresses nothing, so the
    arrays must be stored, as ``numpy.savez`` does.
    """
    file = _found(name, device)
    where = f"server:/{file.name}"
    reader = io.BufferedReader(_Bytes(file), FIRST_BYTES)
    with open_archive(where, reader) as archive:
        members = members_by_name(archive, file.size, where)
    for one in members.values():
        if one.compress_type != zipfile.ZIP_STORED:
            raise file.invalid(
                f"{shown(one.filename)} is compressed, and a server decompresses nothing; write "
                "the file with numpy.savez, or load it in this process"
            )
    starts = [one.header_offset for one in members.values()]
    beginnings = file.several([(start, _LOCAL.size) for start in starts])
    places = []
    for start, beginning, one in zip(starts, beginnings, members.values(), strict=True):
        signature, name_bytes, extra_bytes = _LOCAL.unpack(beginning)
        place = start + _LOCAL.size + name_bytes + extra_bytes
        if signature != b"PK\x03\x04" or place + one.file_size > file.size:
            raise file.invalid(f"{shown(one.filename)} does not begin where the directory says")
        places.append((place, one.file_size))
    headers = file.several([(place, min(size, MAX_NPY_BYTES + 16)) for place, size in places])
    return {
        label: _array(file, header, place, size, f"{shown(label)}: ")
        for label, header, (place, size) in zip(members, headers, places, strict=True)
    }


class _Bytes(io.RawIOBase):
    """A server's file as a stream of bytes, whose every read waits for a round trip."""

    def __init__(self, file: _ServerFile) -> None:
        self._file = file
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._file.size}[whence]
        if begin + offset < 0:
            # As files of the system do: ``zipfile`` handles it, in archives without members.
            raise OSError(errno.EINVAL, "a position before the start of the file")
        self._place = begin + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._file.size - self._place))
        if count:
            buffer[:count] = self._file.bytes(self._place, count)
            self._place += count
        return count


def _array(file: _ServerFile, begin: bytes, start: int, size: int, label: str) -> Tensor:
    """Make the tensor of ``size`` bytes in the ``.npy`` format from ``start`` on.

    ``begin`` are the first of these bytes. Errors begin with ``label``.
    """
    first = io.BytesIO(begin)
    try:
        header = parsed_npy_header(first)
    except InvalidCheckpoint as error:
        raise file.invalid(f"{label}{error}") from None
    if header.dtype.byteorder == ">":
        raise file.invalid(f"{label}its elements are big-endian; load it in this process")
    left = size - first.tell()
    if left < header.nbytes:
        raise file.invalid(
            f"{label}it has {left:,} bytes of elements, but its header says {header.nbytes:,}"
        )
    shape = header.shape[::-1] if header.is_fortran else header.shape
    made = file.tensor(TensorSpec(shape, as_dtype(header.dtype)), start + first.tell())
    if header.is_fortran and len(shape) > 1:
        return permute_dims(made, tuple(range(len(shape)))[::-1])
    return made


def _found(name: str, device: AnyDevice | None) -> _ServerFile:
    place = default_device() if device is None else checked_device(device)
    if not isinstance(place.session, NativeSession):
        raise Unsupported(f"{place} speaks Burn's dialect, which has no files of the server")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{shown(name)} is no name of a file: it is not valid Unicode") from None
    if len(name) > 1024:
        raise UsageError(f"the name of a file has at most 1,024 characters, not {len(name):,}")
    facts = place.runners.storage_task(DescribeFile(name), []).result()
    size, version = _FACTS.unpack(facts.bytes)
    return _ServerFile(place.runners, name, size, version)
