"""Tasks about what a server stores: published tensors, its files, and uploads that sessions share.

A runner forwards a task with the handles of its tensors (``RunnerClient.storage_task``). The
innermost runner calls ``issue``, which passes the task to the session. Only native sessions have
these tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from burn_remote.runner.interface import Session, StorageTask, TensorHandle
from burn_remote.runner.pending import Pending
from burn_remote_protocol.tensors import TensorData, TensorSpec

__all__ = [
    "DescribeFile",
    "FillTensor",
    "KeepUpload",
    "ListNames",
    "LoadRange",
    "OpenPublishedTensor",
    "OpenUpload",
    "PublishTensor",
    "RemoveName",
    "StorageTask",
    "StoringSession",
]


class StoringSession(Session, Protocol):
    """A session whose server stores tensors beyond the session."""

    def publish(self, name: str, tensor: int, spec: TensorSpec) -> Pending[None]:
        """Have the server keep a tensor under a name."""
        ...

    def unpublish(self, name: str) -> Pending[bool]:
        """Have the server remove a name; the reply is whether it had one."""
        ...

    def list_published(self, name: str | None = None) -> Pending[Any]:
        """Ask for all published names and their specs, or only for ``name``."""
        ...

    def open_published(self, tensor: int, spec: TensorSpec, name: str) -> None:
        """Fill a reserved tensor with the elements that are published under a name."""
        ...

    def find_file(self, name: str) -> Pending[TensorData]:
        """Ask for the size and the version of a file of the server."""
        ...

    def load_file(
        self, tensor: int, spec: TensorSpec, name: str, version: int, offset: int
    ) -> None:
        """Fill a reserved tensor with bytes of a file of the server."""
        ...

    def open_content(self, digest: bytes, first: int, count: int) -> Pending[bool]:
        """Fill reserved tensors with a content that the server may keep."""
        ...

    def keep_content(self, digest: bytes, first: int, specs: Sequence[TensorSpec]) -> None:
        """Have the server keep tensors as the content with a digest."""
        ...


class PublishTensor(NamedTuple):
    """Keep a tensor under a name."""

    name: str

    def describe(self) -> str:
        """Return what the task does."""
        return "publishes a tensor"

    def issue(self, session: StoringSession, handles: Sequence[TensorHandle]) -> Pending[None]:
        """Pass the task to the session."""
        (handle,) = handles
        return session.publish(self.name, handle.id, handle.spec)


class RemoveName(NamedTuple):
    """Remove a published name; the reply is whether there was one."""

    name: str

    def describe(self) -> str:
        """Return what the task does."""
        return "removes the name of a published tensor"

    def issue(self, session: StoringSession, handles: Sequence[TensorHandle]) -> Pending[bool]:
        """Pass the task to the session."""
        return session.unpublish(self.name)


class ListNames(NamedTuple):
    """Ask for all published names and their specs, or only for ``name``."""

    name: str | None = None

    def describe(self) -> str:
        """Return what the task does."""
        return "asks for the names of published tensors"

    def issue(self, session: StoringSession, handles: Sequence[TensorHandle]) -> Pending[Any]:
        """Pass the task to the session."""
        return session.list_published(self.name)


class OpenPublishedTensor(NamedTuple):
    """Fill an empty tensor with the elements that are published under a name."""

    name: str

    def describe(self) -> str:
        """Return what the task does."""
        return "opens a published tensor"

    def issue(self, session: StoringSession, handles: Sequence[TensorHandle]) -> None:
        """Pass the task to the session."""
        (handle,) = handles
        session.open_published(handle.id, handle.spec, self.name)


class DescribeFile(NamedTuple):
    """Ask for the size and the version of a file of the server."""

    name: str

    def describe(self) -> str:
        """Return what the task does."""
        return "loads a file of the server"

    def issue(
        self, session: StoringSession, handles: Sequence[TensorHandle]
    ) -> Pending[TensorData]:
        """Pass the task to the session."""
        return session.find_file(self.name)


class LoadRange(NamedTuple):
    """Fill an empty tensor with the bytes of a file from ``offset`` on."""

    name: str
    version: int
    offset: int

    def describe(self) -> str:
        """Return what the task does."""
        return "loads a file of the server"

    def issue(self, session: StoringSession, handles: Sequence[TensorHandle]) -> None:
        """Pass the task to the session."""
        (handle,) = handles
        session.load_file(handle.id, handle.spec, self.name, self.version, self.offset)


class OpenUpload(NamedTuple):
    """Fill empty tensors with an earlier upload; the reply is whether the server has it.

    The ids of the tensors are consecutive.
    """

    digest: bytes

    def describe(self) -> str:
        """Return what the task does."""
        return "uploads a tensor"

    def issue(self, session: StoringSession, handles: Sequence[TensorHandle]) -> Pending[bool]:
        """Pass the task to the session."""
        return session.open_content(self.digest, handles[0].id, len(handles))


class FillTensor(NamedTuple):
    """Fill an empty tensor with elements that are sent."""

    data: TensorData

    def describe(self) -> str:
        """Return what the task does."""
        return "uploads a tensor"

    def issue(self, session: StoringSession, handles: Sequence[TensorHandle]) -> None:
        """Pass the task to the session."""
        (handle,) = handles
        session.upload(handle.id, self.data)


class KeepUpload(NamedTuple):
    """Have the server keep tensors with consecutive ids for later sessions."""

    digest: bytes

    def describe(self) -> str:
        """Return what the task does."""
        return "uploads a tensor"

    def issue(self, session: StoringSession, handles: Sequence[TensorHandle]) -> None:
        """Pass the task to the session."""
        session.keep_content(self.digest, handles[0].id, [handle.spec for handle in handles])
