"""The files that clients may load into tensors, in the directories that the operator allows.

A name is a path below one of the directories. Each part is opened relative to the descriptor of the
part before it, without following a symbolic link. So no name leads out of the directory, even if
the tree changes between two system calls. Only regular files are opened. The version of a file is a
hash of its identity, size and times; a file that is replaced or written gets another version.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from burn_remote_protocol.errors import FileUnavailable, UsageError, shown

__all__ = ["BLOCK_BYTES", "NO_FILES", "DataFiles", "FileFacts", "OpenFile"]

# Bytes that are read between two checks whether the session has ended; also the host memory for a
# file on its way to a GPU. A larger block is not read faster.
BLOCK_BYTES: Final = 4 * 1024 * 1024

# Most parts of a path. Each part takes a descriptor and time.
MAX_PARTS: Final = 64

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK: without it, opening a named pipe that replaced the file after the check would block
# until another process opens the pipe for writing.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FACTS: Final = struct.Struct("<QQ")
_IDENTITY: Final = struct.Struct("<QQqqq")


class FileFacts(NamedTuple):
    """The size of a file in bytes, and its version, a number below 2⁶³."""

    size: int
    version: int

    def to_bytes(self) -> bytes:
        """Return both as little-endian uint64."""
        return _FACTS.pack(self.size, self.version)


class OpenFile:
    """A file that is being read."""

    def __init__(self, descriptor: int, facts: FileFacts, offset: int) -> None:
        self._descriptor: Final = descriptor
        self._facts: Final = facts
        self._offset = offset

    def read_into(self, memory: memoryview) -> None:
        """Fill memory with the next bytes. Raises ``FileUnavailable``."""
        filled = 0
        while filled < len(memory):
            try:
                count = os.preadv(self._descriptor, [memory[filled:]], self._offset)
            except OSError as error:
                raise _unavailable(error) from None
            if count == 0:
                raise FileUnavailable("the file became shorter while it was read")
            filled += count
            self._offset += count

    def check_unchanged(self) -> None:
        """Raise ``FileUnavailable`` if the file was written while it was read."""
        if _facts_of(self._descriptor) != self._facts:
            raise FileUnavailable("the file changed while it was read; load it again")


class DataFiles:
    """The files in some directories. Thread-safe."""

    def __init__(self, directories: Sequence[Path]) -> None:
        """Check the directories. Raises ``UsageError`` for one that cannot be read."""
        self._directories: Final = tuple(directories)
        for directory in directories:
            try:
                os.close(os.open(directory, _DIRECTORY))
            except OSError as error:
                raise UsageError(
                    f"--data-dir {directory} cannot be read: {error.strerror}"
                ) from None

    def find(self, name: str) -> FileFacts:
        """Return the facts of a file. Raises ``FileUnavailable``."""
        with self._descriptor(name) as descriptor:
            return _facts_of(descriptor)

    @contextlib.contextmanager
    def opened(self, name: str, version: int, offset: int, size: int) -> Iterator[OpenFile]:
        """Open a file to read ``size`` bytes from ``offset`` on.

        Raises ``FileUnavailable``, also if the file has another version or fewer bytes.
        """
        with self._descriptor(name) as descriptor:
            facts = _facts_of(descriptor)
            if facts.version != version:
                raise FileUnavailable("the file has changed since it was found; load it again")
            if offset + size > facts.size:
                raise FileUnavailable(
                    f"bytes {offset:,} to {offset + size:,} are wanted, but the file has "
                    f"{facts.size:,}"
                )
            yield OpenFile(descriptor, facts, offset)

    @contextlib.contextmanager
    def _descriptor(self, name: str) -> Iterator[int]:
        if not self._directories:
            raise FileUnavailable("the server allows no files; start it with --data-dir PATH")
        parts = _parts(name)
        with contextlib.ExitStack() as stack:
            yield self._first_with(parts, stack)

    def _first_with(self, parts: Sequence[str], stack: contextlib.ExitStack) -> int:
        for directory in self._directories:
            with contextlib.suppress(FileNotFoundError):
                try:
                    return _open_below(directory, parts, stack)
                except FileNotFoundError:
                    raise
                except OSError as error:
                    raise _unavailable(error) from None
        raise FileUnavailable("the server has no such file")


NO_FILES: Final = DataFiles(())


def _parts(name: str) -> list[str]:
    """Split a name. Raises ``FileUnavailable`` for one that could lead anywhere else."""
    parts = name.split("/")
    is_valid = len(parts) <= MAX_PARTS and all(
        part not in ("", ".", "..") and "\0" not in part for part in parts
    )
    try:
        name.encode()
    except UnicodeEncodeError:
        is_valid = False
    if not is_valid:
        raise FileUnavailable(
            f"{shown(name)} is not the name of a file; expected a path below the server's "
            "directory, such as weights/model.safetensors, without . and .."
        )
    return parts


def _open_below(directory: Path, parts: Sequence[str], stack: contextlib.ExitStack) -> int:
    """Open a regular file below a directory; ``stack`` closes what was opened."""
    current = os.open(directory, _DIRECTORY)
    stack.callback(os.close, current)
    for part in parts[:-1]:
        current = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
        stack.callback(os.close, current)
    # Before opening it, because opening a device may have effects.
    _check_regular(os.stat(parts[-1], dir_fd=current, follow_symlinks=False))
    descriptor = os.open(parts[-1], _FILE, dir_fd=current)
    stack.callback(os.close, descriptor)
    _check_regular(os.fstat(descriptor))  # another file may have replaced it
    return descriptor


def _check_regular(found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if not stat.S_ISREG(found.st_mode):
        raise FileUnavailable("it is not a regular file")


def _facts_of(descriptor: int) -> FileFacts:
    """Return the facts of an open file. Raises ``FileUnavailable``, as for a lost network disk."""
    try:
        found = os.fstat(descriptor)
    except OSError as error:
        raise _unavailable(error) from None
    identity = _IDENTITY.pack(
        found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    )
    digest = hashlib.blake2b(identity, digest_size=8).digest()
    # Below 2⁶³: the range that every end can represent.
    return FileFacts(found.st_size, int.from_bytes(digest, "big") >> 1)


def _unavailable(error: OSError) -> FileUnavailable:
    """Translate a failure, without the path of the directory."""
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        return FileUnavailable(
            "a part of the name is a symbolic link, which is not followed, or is not a directory"
        )
    return FileUnavailable(f"the file cannot be read: {error.strerror}")
