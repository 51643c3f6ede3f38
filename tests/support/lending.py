"""A backend whose processes lend each other memory, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from typing import Any, ClassVar

from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import TransferFailed
from burn_remote_server.backends.interface import Loan
from burn_remote_server.backends.numpy.backend import NumpyBackend

__all__ = ["SharingBackend"]


class _SharedLoan:
    def __init__(self, data: memoryview) -> None:
        self._memory = SharedMemory(create=True, size=len(data))
        _bytes_of(self._memory)[: len(data)] = data
        self.handle = self._memory.name.encode()
        SharingBackend.open_loans.add(self.handle)

    def __del__(self) -> None:
        SharingBackend.open_loans.discard(self.handle)
        self._memory.close()
        self._memory.unlink()


def _bytes_of(memory: SharedMemory) -> memoryview:
    assert memory.buf is not None  # until it is closed
    return memory.buf


class SharingBackend(NumpyBackend):
    """The NumPy backend with loans in shared memory; a handle is the memory's name."""

    # Handles of all current loans.
    open_loans: ClassVar[set[bytes]] = set()

    def __init__(self, host: str = "this host") -> None:
        super().__init__()
        self.host = host
        self.has_room = True
        self.borrowed: list[bytes] = []
        # Called with a handle before it is opened, in the thread that copies.
        self.before_borrowing: Callable[[bytes], object] = lambda handle: None

    @property
    def lends_to(self) -> str:
        return self.host

    def lend(self, shared: Any, dtype: DType) -> Loan | None:
        return _SharedLoan(self.to_bytes(shared, dtype)) if self.has_room else None

    def borrow(self, upload: Any, handle: bytes) -> None:
        self.borrowed.append(handle)
        self.before_borrowing(handle)
        try:
            memory = SharedMemory(name=handle.decode("ascii"))
        except (OSError, ValueError) as error:
            raise TransferFailed(f"no memory is lent as {handle!r}") from error
        try:
            if memory.size < upload.nbytes:
                raise TransferFailed(f"{memory.size:,} bytes were lent, not {upload.nbytes:,}")
            self.write(upload, 0, _bytes_of(memory)[: upload.nbytes])
        finally:
            memory.close()
