"""Execution of tasks on files of the server: looking them up, and loading ranges of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from burn_remote_protocol.dtypes import U64
from burn_remote_protocol.errors import FileUnavailable, OperationFailed, OutOfMemory, shown
from burn_remote_protocol.messages import FindFile, LoadFile
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.access.data_files import BLOCK_BYTES, DataFiles
from burn_remote_server.execution.engine_interfaces import Outbox
from burn_remote_server.execution.interpreter import Interpreter

__all__ = ["FileTasks"]


class FileTasks:
    """The handlers of tasks on files of the server in one session."""

    def __init__(
        self,
        interpreter: Interpreter,
        outbox: Outbox,
        files: DataFiles,
        fail: Callable[[int, OperationFailed, str, str], None],
        is_stopped: Callable[[], bool],
    ) -> None:
        """``fail(tensor, error, operation, shapes)`` stores a failure as a tensor."""
        self._backend: Final = interpreter.backend
        self._tensors: Final = interpreter.tensors
        self._outbox: Final = outbox
        self._files: Final = files
        self._fail: Final = fail
        self._is_stopped: Final = is_stopped
        self.handlers: Final[Mapping[type[Any], Callable[[Any], None]]] = {
            FindFile: self._find_file,
            LoadFile: self._load_file,
        }

    def _find_file(self, task: FindFile) -> None:
        try:
            facts = self._files.find(task.name)
        except FileUnavailable as error:
            failure = FileUnavailable(error.reason, operation="FindFile", shapes=shown(task.name))
            self._outbox.reply(task.request, failure)
        else:
            self._outbox.reply(task.request, TensorData(facts.to_bytes(), (2,), U64))

    def _load_file(self, task: LoadFile) -> None:
        shapes = f"{task.spec}, {shown(task.name)}"
        try:
            self._load(task)
        except OperationFailed as error:
            self._tensors.forget(task.tensor)  # an incomplete upload
            self._fail(task.tensor, error, "LoadFile", shapes)
        except MemoryError:
            self._tensors.forget(task.tensor)
            failure = OutOfMemory(f"not enough memory for {task.spec}")
            self._fail(task.tensor, failure, "LoadFile", shapes)

    def _load(self, task: LoadFile) -> None:
        backend, size = self._backend, task.spec.nbytes
        with self._files.opened(task.name, task.version, task.offset, size) as file:
            slot = self._tensors.begin_upload(task.tensor, task.spec, size)
            memory = backend.upload_memory(slot.upload)
            staging = memoryview(bytearray(min(size, BLOCK_BYTES))) if memory is None else None
            while slot.received < size:
                if self._is_stopped():  # the session has ended
                    return
                count = min(BLOCK_BYTES, size - slot.received)
                if memory is not None:
                    file.read_into(memory[slot.received : slot.received + count])
                elif staging is not None:
                    file.read_into(staging[:count])
                    backend.write(slot.upload, slot.received, staging[:count])
                slot.received += count
            file.check_unchanged()
        self._tensors.finish_upload(task.tensor, slot)
