"""Loading of a server's own files: the client reads their headers, the server their elements.

The server knows no format. The client asks the server for a tensor of the file's first bytes, reads
it, and parses the header as that of a local file. Then it asks for one tensor per range of bytes.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from burn_remote.arguments.arrays import AnyDType, as_dtype
from burn_remote.checkpoints.named_tensors import in_dtype, nested_by_dots, selected
from burn_remote.checkpoints.numpy_files import MAX_HEADER_BYTES as MAX_NPY_BYTES
from burn_remote.checkpoints.numpy_files import parsed_npy_header
from burn_remote.checkpoints.safetensors_header import (
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    InvalidCheckpoint,
    parsed_header,
)
from burn_remote.functions.default_device import default_device
from burn_remote.functions.device_class import checked_device
from burn_remote.functions.manipulation import permute_dims
from burn_remote.functions.tensor import Tensor
from burn_remote.sessions.native.native_session import NativeSession
from burn_remote_protocol.dtypes import U8
from burn_remote_protocol.errors import ArgumentMismatch, Unsupported, UsageError, shown
from burn_remote_protocol.tensors import TensorSpec

if TYPE_CHECKING:
    from burn_remote.functions.device_class import AnyDevice
    from burn_remote.runner.interface import RunnerClient

__all__ = ["load_server_npy", "load_server_safetensors"]

# The first read: the headers of most models, so that one round trip suffices. Its bytes take room
# in the session's quota until they have been read.
FIRST_BYTES: Final = 64 * 1024

_FACTS: Final = struct.Struct("<QQ")


class _ServerFile(NamedTuple):
    """A file of a server, in one version."""

    client: RunnerClient
    session: NativeSession
    name: str
    size: int
    version: int

    def tensor(self, spec: TensorSpec, offset: int) -> Tensor:
        """Have the server make a tensor of the bytes from ``offset`` on. Does not wait."""
        handle = self.client.create_empty_handle(spec)
        self.session.load_file(handle.id, spec, self.name, self.version, offset)
        return Tensor(handle)

    def bytes(self, offset: int, count: int) -> bytes:
        """Wait for some bytes."""
        return self.tensor(TensorSpec((count,), U8), offset).numpy().tobytes()

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
        raise ArgumentMismatch(f"names must list names; write [{names!r}]")
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
    begin = io.BytesIO(file.bytes(0, min(file.size, MAX_NPY_BYTES + 16)) if file.size else b"")
    try:
        header = parsed_npy_header(begin)
    except InvalidCheckpoint as error:
        raise file.invalid(error) from None
    if header.dtype.byteorder == ">":
        raise file.invalid("its elements are big-endian; load it in this process")
    left = file.size - begin.tell()
    if left < header.nbytes:
        raise file.invalid(
            f"it has {left:,} bytes of elements, but its header says {header.nbytes:,}"
        )
    shape = header.shape[::-1] if header.is_fortran else header.shape
    made = file.tensor(TensorSpec(shape, as_dtype(header.dtype)), begin.tell())
    if header.is_fortran and len(shape) > 1:
        return permute_dims(made, tuple(range(len(shape)))[::-1])
    return made


def _found(name: str, device: AnyDevice | None) -> _ServerFile:
    place = default_device() if device is None else checked_device(device)
    session = place.session
    if not isinstance(session, NativeSession):
        raise Unsupported(f"{place} speaks Burn's dialect, which has no files of the server")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{shown(name)} is no name of a file: it is not valid Unicode") from None
    if len(name) > 1024:
        raise UsageError(f"the name of a file has at most 1,024 characters, not {len(name):,}")
    size, version = _FACTS.unpack(session.find_file(name).result().bytes)
    return _ServerFile(place.runners, session, name, size, version)
