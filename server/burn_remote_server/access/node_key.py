"""The secret key by which an Iroh server is known: a file of 32 bytes, as Burn's servers have."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from pathlib import Path
from typing import Final

from burn_remote_protocol.errors import UsageError

__all__ = ["InvalidNodeKey", "read_node_key"]

KEY_BYTES: Final = 32


class InvalidNodeKey(UsageError):
    """The file of the secret key cannot be used. The message says why."""

    code = "invalid_node_key"


def read_node_key(path: Path | None) -> bytes:
    """Return the key in a file, which is created if it does not exist; a new key without a file.

    Raises ``InvalidNodeKey``.
    """
    if path is None:
        return secrets.token_bytes(KEY_BYTES)
    try:
        with contextlib.suppress(FileNotFoundError):
            return _checked(path, path.read_bytes())
        _create(path)
        return _checked(path, path.read_bytes())
    except OSError as error:
        raise InvalidNodeKey(f"iroh_key_file {path}: {error.strerror}") from error


def _checked(path: Path, key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise InvalidNodeKey(
            f"iroh_key_file {path} has {len(key):,} bytes instead of {KEY_BYTES}; delete it to get "
            "a new key, and so a new node id"
        )
    return key


def _create(path: Path) -> None:
    """Create the file with a new key, unless another process creates it at the same time.

    It appears with all its bytes, readable by its owner only.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent)  # for the owner only
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(name, path)
    finally:
        os.unlink(name)
