"""``load`` and ``save``: the suffix of a file's name determines its format."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.tensor_value import is_tensor
from burn_remote.tensor_files.numpy_files import load_npy, load_npz, save_npy, save_npz
from burn_remote.tensor_files.safetensors_files import load_safetensors, save_safetensors
from burn_remote.tensor_files.server_files import (
    load_server_npy,
    load_server_npz,
    load_server_safetensors,
)
from burn_remote_protocol.errors import ArgumentMismatch, type_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from burn_remote.functions.device_class import AnyDevice
    from burn_remote.tensor_files.progress import Progress

__all__ = ["load", "save"]

# The prefix of the name of a file that the server reads.
SERVER: Final = "server:"

SAFETENSORS: Final = ".safetensors"
NPY: Final = ".npy"

_LOADERS: Final[dict[str, Callable[..., Any]]] = {
    SAFETENSORS: load_safetensors,
    NPY: load_npy,
    ".npz": load_npz,
}
_SERVER_LOADERS: Final[dict[str, Callable[..., Any]]] = {
    SAFETENSORS: load_server_safetensors,
    NPY: load_server_npy,
    ".npz": load_server_npz,
}
_SAVERS: Final[dict[str, Callable[..., None]]] = {
    SAFETENSORS: save_safetensors,
    NPY: save_npy,
    ".npz": save_npz,
}


@explained
def load(
    path: str | os.PathLike[str],
    *,
    device: AnyDevice | None = None,
    progress: Progress = None,
    share: bool = False,
    **options: Any,
) -> Any:
    """Send the tensors of a file to a device: ``.safetensors``, ``.npy`` or ``.npz``.

    Returns the tensor of a ``.npy`` file, and a dictionary by name for other files. The client
    holds one tensor at a time. ``options`` are those of ``load_safetensors`` (``names``, ``dtype``,
    ``nested``, ``like``), for such files only. ``progress`` is a function that gets a name, the
    bytes done and all bytes, or a bool: whether to show a bar. By default, a bar is shown after a
    second, in a terminal or a notebook, if rich is installed.

    With ``share=True``, the client first sends a hash of all tensors, about 100 bytes. If the
    server has the same tensors from an earlier session with the same token, no elements are sent.
    Otherwise the client sends them, and the server keeps them for later sessions, within its
    settings ``max_content_bytes`` and ``content_seconds``. The client reads the file once to hash
    it and, if its elements must be sent, again. Servers that keep nothing for other sessions just
    get the elements.

    ``"server:/models/x.safetensors"`` names a file of the server, below a directory that its
    operator allows (``--data-dir``). It may be a ``.safetensors`` or ``.npy`` file, or a ``.npz``
    file that is not compressed. The server reads the elements, so only the headers cross the
    network, in two to seven round trips; ``like`` is not available. If the server has no such file
    or allows none, this raises ``FileUnavailable`` or ``Unsupported``. If it fails to load a tensor
    later, reading the tensor raises ``FileUnavailable`` or ``QuotaExceeded``.

    Raises ``InvalidCheckpoint`` for a file that is not valid, ``ArgumentMismatch`` for another
    suffix, and ``OSError``.
    """
    suffix = _suffix(path)
    if options and suffix != SAFETENSORS:
        raise ArgumentMismatch(f"{', '.join(options)} can only be used with {SAFETENSORS} files")
    if isinstance(path, str) and path.startswith(SERVER):
        if share:
            raise ArgumentMismatch("a server's file is not sent; load it without share=True")
        name = path.removeprefix(SERVER).removeprefix("/")
        return _SERVER_LOADERS[suffix](name, device=device, **options)
    return _LOADERS[suffix](path, device=device, progress=progress, share=share, **options)


@explained
def save(
    path: str | os.PathLike[str], value: Any, *, progress: Progress = None, **options: Any
) -> None:
    """Wait for tensors, and save them as ``.safetensors``, ``.npy`` (one tensor) or ``.npz``.

    The arguments may come in PyTorch's order, ``save(value, path)``.

    ``value`` is a tensor for ``.npy``; for the others, containers of tensors, arrays and numbers,
    which are saved by their dotted names as ``save_safetensors`` does. The client holds the largest
    tensor, and 64 MiB of others. A file that exists is replaced at the end, in one step.
    ``options`` are those of ``save_safetensors`` (``metadata``), for such files only, and
    ``progress`` is that of ``load``.

    Raises ``DTypeMismatch`` for dtypes that the format cannot hold (quantized tensors; bfloat16 in
    NumPy's files), ``ArgumentMismatch`` for another suffix or value, and ``OSError``.
    """
    if isinstance(value, str | os.PathLike) and not isinstance(path, str | os.PathLike):
        path, value = value, path
    suffix = _suffix(path)
    if isinstance(path, str) and path.startswith(SERVER):
        raise ArgumentMismatch(
            "a server's files can only be loaded; save to a path of this machine"
        )
    if options and suffix != SAFETENSORS:
        raise ArgumentMismatch(f"{', '.join(options)} can only be used with {SAFETENSORS} files")
    if is_tensor(value) and suffix != NPY:
        raise ArgumentMismatch(
            f"a {suffix} file has tensors by name; write {{'x': tensor}}, or a name with {NPY}"
        )
    if suffix == NPY and isinstance(value, Mapping | list | tuple):
        raise ArgumentMismatch(
            f"a {NPY} file has one tensor, but the value is of type {type_name(value)}; write "
            f"a name with {SAFETENSORS} to save several"
        )
    _SAVERS[suffix](path, value, progress=progress, **options)


def _suffix(path: str | os.PathLike[str]) -> str:
    suffix = PurePath(path).suffix.lower()
    if suffix not in _LOADERS:
        raise ArgumentMismatch(
            f"the suffix of {os.fspath(path)!r} names no format; use {', '.join(_LOADERS)}"
        )
    return suffix
