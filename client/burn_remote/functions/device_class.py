"""The ``Device`` class, the base class of remote and local devices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypeAlias, Union

from burn_remote.arguments.arrays import AnyDType, as_dtype
from burn_remote.arguments.numbers import whole_number
from burn_remote.diagnostics.advice import device_advice, device_attribute_advice
from burn_remote.functions.published_tensors import (
    list_published,
    open_published,
    publish,
    unpublish,
)
from burn_remote.runner.interface import RunnerClient
from burn_remote.runner.stack import CLOSE_SECONDS, RunnerStack
from burn_remote.sessions.traffic import Traffic
from burn_remote_protocol.dtypes import DTypeUsage
from burn_remote_protocol.errors import ArgumentMismatch, OperationFailed, UsageError
from burn_remote_protocol.operations.extensions import EXTENSIONS_FIELD

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor
    from burn_remote_protocol.tensors import TensorSpec

__all__ = ["AnyDevice", "Device", "checked_device", "open_names_with"]

# A device, or the name of one: "ws://gpu-box:3000/1" or "local".
AnyDevice: TypeAlias = Union["Device", str]

_openers: list[Callable[[str], Device]] = []


class Device:
    """A place where tensors live and operations run. Use it in a ``with`` block, or ``close()`` it.

    Two devices are equal if they share one session. Tensors of unequal devices cannot be combined.
    """

    # For errors: why two devices of the same name are not equal.
    distinction: ClassVar[str] = "each has a session of its own"
    # How another process gets such a device, for errors.
    elsewhere: ClassVar[str] = (
        "send its address, str(device), and open burn_remote.RemoteDevice(address) over there"
    )

    runners: RunnerStack

    def __init__(self, *_: object, **__: object) -> None:
        raise ArgumentMismatch(
            "Device is the common class of devices; open RemoteDevice('ws://host:3000') or "
            "LocalDevice()"
        )

    @property
    def session(self) -> Any:
        """The session that executes this device's operations."""
        return self.runners.session

    @property
    def client(self) -> RunnerClient:
        """The outermost runner: it sees all operations on this device.

        To record or change operations, assign a runner around it:
        ``device.client = Recorder(device.client)``. To stop, assign that runner's ``inner``. All
        devices of a session share their runners.
        """
        return self.runners.outermost

    @client.setter
    def client(self, client: RunnerClient) -> None:
        self.runners.put_around(client)

    if not TYPE_CHECKING:  # a type checker must still report missing attributes

        def __getattr__(self, name: str) -> NoReturn:
            advice = device_attribute_advice(name, type(self))
            raise AttributeError(f"a device has no attribute {name!r}{advice}", name=name)

    def _use_runners(self, runners: RunnerStack) -> None:
        attributes = dict(vars(self))
        self.runners = runners
        runners.add_device(self, partial(type(self)._another, attributes))

    @classmethod
    def _another(cls, attributes: dict[str, Any], runners: RunnerStack) -> Self:
        """Return another device of a session whose devices were all garbage-collected."""
        device = cls.__new__(cls)
        vars(device).update(attributes)
        device._use_runners(runners)
        return device

    def tensor(self, data: Any, dtype: AnyDType | None = None) -> Tensor:
        """Return ``data`` (array, nested lists or scalar) as a tensor on this device."""
        from burn_remote.functions.creation import tensor  # it needs this class

        return tensor(data, dtype=dtype, device=self)

    def autodiff(self) -> Self:
        """Return this device itself, because every device can track tensors; the name is Burn's.

        ``x.requires_grad_()`` tracks a tensor; nothing is recorded for other tensors.
        """
        return self

    def sync(self) -> None:
        """Wait until everything issued so far has been executed.

        Raises ``ConnectionLost``, or the first ``OperationFailed`` that no read has raised. Its
        attribute ``others`` has the later ones.
        """
        self.runners.sync().result()

    def seed(self, seed: int) -> None:
        """Set the seed of this device's random numbers, for this session only (0 ≤ seed < 2⁶⁴)."""
        self.runners.seed(whole_number("a seed", seed, 0, 2**64 - 1))

    def dtype_usage(self, dtype: AnyDType) -> DTypeUsage:
        """Return what the device supports for a dtype, as flags. Waits for the reply."""
        return self.runners.dtype_usage(as_dtype(dtype)).result()

    def supports_dtype(self, dtype: AnyDType) -> bool:
        """Return whether the device can store and compute with a dtype. Waits for the reply."""
        usage = self.dtype_usage(dtype)
        return DTypeUsage.STORAGE in usage and DTypeUsage.ARITHMETIC in usage

    def memory_cleanup(self) -> None:
        """Have the device return cached memory to its operating system or GPU. Does not wait."""
        self.runners.memory_cleanup()

    def publish(self, name: str, tensor: Tensor) -> None:
        """Keep a tensor of this device under a name, for all sessions with the same token.

        The name keeps these elements, also after the end of this session, until ``unpublish``,
        another ``publish`` of the name, or the end of the server. No elements are copied or sent;
        on a local device, the names belong to the process. Waits for the reply.

        Raises ``UsageError`` for an invalid name (1 to 255 bytes of printable text),
        ``DeviceMismatch`` for a tensor of another device, ``QuotaExceeded``, the error of a tensor
        that failed, and ``Unsupported`` if the server keeps no named tensors.
        """
        publish(self, name, tensor)

    def published(self, name: str) -> Tensor:
        """Return the tensor that a session with the same token has published under a name.

        A later ``publish`` of the name does not change this tensor. Waits for one round trip.
        Raises ``KeyError`` if nobody has published the name.
        """
        from burn_remote.functions.tensor import Tensor  # it needs this class

        return Tensor(open_published(self, name))

    def list_published(self) -> dict[str, TensorSpec]:
        """Return the names that sessions with the same token have published, and their specs."""
        return list_published(self)

    def unpublish(self, name: str) -> None:
        """Remove a name. Tensors that ``published`` returned for it remain valid.

        Raises ``KeyError`` if nobody has published the name.
        """
        unpublish(self, name)

    @property
    def traffic(self) -> Traffic:
        """A copy of the session's counters of traffic; subtract two copies to measure a section."""
        traffic: Traffic = self.session.traffic
        return traffic - Traffic()

    @property
    def info(self) -> dict[str, Any]:
        """The description of the device that the server sent when the session opened."""
        about = dict(self.session.welcome.device)
        about.pop(EXTENSIONS_FIELD, None)
        return about

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """End the session, freeing its tensors. A second call does nothing.

        Waits until everything issued so far has been executed and tensors that move to other
        devices have arrived, at most ``timeout_seconds``. After that time, the server skips the
        remaining operations. With 0, this does not wait, and moves that have not arrived fail.

        In a signal handler or finalizer that interrupted a call of this device in the same thread,
        this returns at once, and another thread closes the device.

        Raises the first ``OperationFailed`` that no read and no ``sync`` has raised; its attribute
        ``others`` has the later ones. The session has ended nevertheless.
        """
        self._end(timeout_seconds, is_after_error=False)

    def _end(self, timeout_seconds: float, *, is_after_error: bool) -> None:
        self.runners.close(timeout_seconds, is_after_error=is_after_error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self._end(CLOSE_SECONDS, is_after_error=True)
        except OperationFailed as failure:
            notes = getattr(failure, "__notes__", ())
            error.add_note("\n".join([f"an operation failed before: {failure}", *notes]))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the device like a ``with`` block, in a thread, so that the event loop runs."""
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def __reduce__(self) -> NoReturn:
        # ``copy`` calls this too.
        raise ArgumentMismatch(
            f"{self!r} belongs to this process and can be neither pickled nor copied; "
            f"{self.elsewhere}"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.runners is self.runners

    def __hash__(self) -> int:
        return hash(id(self.runners))


def open_names_with(open_device: Callable[[str], Device]) -> None:
    """Register the function that opens a device by its name: ``burn_remote.device``."""
    _openers[:] = [open_device]


def checked_device(device: AnyDevice) -> Device:
    """Return ``device``, or the device with this name.

    Raises ``UsageError`` if it is neither a device nor the name of one, and what
    ``burn_remote.device`` raises.
    """
    if isinstance(device, Device):
        return device
    if isinstance(device, str):
        return _openers[0](device)
    advice = device_advice(device)
    raise UsageError(
        "a device must be a RemoteDevice, a LocalDevice, or a name such as 'ws://host:3000' or "
        f"'local', not {device!r}{advice}"
    )
