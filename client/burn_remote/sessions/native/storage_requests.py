"""Requests about what a server stores: its files, named tensors, uploads that sessions share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from burn_remote.runner.pending import Pending
from burn_remote.sessions.native.task_queue import TaskQueue
from burn_remote_protocol.dialects.native import EncodedTask, encode_task
from burn_remote_protocol.dtypes import U64
from burn_remote_protocol.errors import Unsupported
from burn_remote_protocol.messages import (
    FindFile,
    KeepContent,
    ListPublished,
    LoadFile,
    Names,
    OpenContent,
    OpenPublished,
    Publish,
    Unpublish,
)
from burn_remote_protocol.operations.extensions import check_announced_dtype
from burn_remote_protocol.tensors import TensorData, TensorSpec

__all__ = ["StorageRequests"]


class StorageRequests(TaskQueue, ABC):
    """The methods of ``NativeSession`` that make it a ``StoringSession``."""

    @abstractmethod
    def _ask(
        self,
        task_of: Callable[[int], EncodedTask],
        read: TensorSpec | None = None,
        *,
        reports_failures: bool = True,
    ) -> Pending[Any]:
        """Queue the task that ``task_of`` returns for a request number; return its reply.

        ``read``: the shape and dtype of the reply, if it is a tensor.
        """

    # -- files of the server ------------------------------------------------------------------

    def check_files(self) -> None:
        """Raise ``Unsupported`` unless clients may load files of the server."""
        if self.transfer_domain == "local":
            raise Unsupported(
                f"{self._connection.address} has no server whose files could be loaded; omit "
                "server: to load a file of this machine"
            )
        allowed = self.welcome.limits.get("files")
        if allowed is None:
            raise Unsupported(
                f"{self._connection.address} cannot load files from its disk: update the server"
            )
        if not allowed:
            raise Unsupported(
                f"{self._connection.address} does not let clients load files from its disk: its "
                "operator must start it with --data-dir PATH"
            )

    def find_file(self, name: str) -> Pending[TensorData]:
        """Ask for the size and the version of a file of the server, as a [2] uint64 tensor."""
        self.check_files()
        return self._ask(
            lambda request: encode_task(FindFile(request, name)), TensorSpec((2,), U64)
        )

    def load_file(
        self, tensor: int, spec: TensorSpec, name: str, version: int, offset: int
    ) -> None:
        """Have the server make a tensor of the bytes of one of its files."""
        self._enqueue(LoadFile(tensor, spec, name, version, offset))

    # -- tensors that outlive the session -----------------------------------------------------

    @property
    def content_bytes(self) -> int:
        """The largest content that the server keeps for other sessions; 0 if it keeps none."""
        return self.welcome.limits.get("content_bytes", 0)

    def open_content(self, digest: bytes, first: int, count: int) -> Pending[bool]:
        """Ask the server to make tensors of a content that it keeps; the reply is whether it does.

        The ``count`` tensors get the ids from ``first`` on.
        """
        return self._ask(lambda request: encode_task(OpenContent(request, digest, first, count)))

    def keep_content(self, digest: bytes, first: int, specs: Sequence[TensorSpec]) -> None:
        """Have the server keep tensors, from id ``first`` on, as the content with a digest."""
        self._enqueue(KeepContent(digest, first, tuple(specs)))

    def check_publishes(self) -> None:
        """Raise ``Unsupported`` unless the server keeps named tensors."""
        if not self.welcome.limits.get("published"):
            raise Unsupported(
                f"{self._connection.address} keeps no named tensors: update the server"
            )

    def publish(self, name: str, tensor: int, spec: TensorSpec) -> Pending[None]:
        """Have the server keep a tensor under a name."""
        return self._ask(lambda request: encode_task(Publish(request, name, tensor, spec)))

    def unpublish(self, name: str) -> Pending[bool]:
        """Have the server remove a name; the reply is whether it had one."""
        return self._ask(lambda request: encode_task(Unpublish(request, name)))

    def list_published(self, name: str | None = None) -> Pending[Names]:
        """Ask for all published names and their specs, or only for ``name``."""
        return self._ask(lambda request: encode_task(ListPublished(request, name)))

    def open_published(self, tensor: int, spec: TensorSpec, name: str) -> None:
        """Have the server make a tensor with the elements that are published under a name."""
        check_announced_dtype(spec.dtype, self._extensions, self._connection.address)
        self._enqueue(OpenPublished(tensor, spec, name))
