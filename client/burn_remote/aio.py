"""Functions that wait without blocking an event loop: ``await aio.tensor(array, device=device)``.

Issuing an operation never waits for the server, and ``await x.read()`` waits without blocking. The
functions here await everything else: opening and closing devices, sending large tensors, reading
several tensors at once, and files. ``async with device:`` closes a device like ``with``.

Blocking work runs in a thread of the loop's default executor. If a call is cancelled, the thread
finishes its work, and the result is freed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Generator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from burn_remote.devices.named_devices import device as named_device
from burn_remote.devices.remote import RemoteDevice
from burn_remote.diagnostics.advice import missing_from
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.functions.creation import tensor as make_tensor
from burn_remote.functions.default_device import default_device
from burn_remote.functions.tensor_value import read_arrays
from burn_remote.runner.pending import sent
from burn_remote.sessions.source_locations import caller
from burn_remote.tensor_files.load_and_save import load as load_file
from burn_remote.tensor_files.load_and_save import save as save_file
from burn_remote_protocol.errors import UsageError

if TYPE_CHECKING:
    from burn_remote.arguments.arrays import AnyDType, Array
    from burn_remote.functions.device_class import AnyDevice, Device
    from burn_remote.functions.tensor import Tensor

__all__ = ["load", "open_device", "read", "save", "sync", "tensor"]

if not TYPE_CHECKING:  # hidden from type checkers, which must report missing names
    __getattr__ = missing_from(__name__)

# An array of at most this size is sent by the calling thread: converting it and appending it to a
# batch takes about as long as waking another thread.
SMALL_BYTES: Final = 16 * 1024


class OpeningDevice(Coroutine[Any, Any, "Device"]):
    """A coroutine that returns a device; ``async with`` opens the device and closes it."""

    def __init__(self, opening: Coroutine[Any, Any, Device]) -> None:
        self._opening = opening
        self._device: Device | None = None

    def send(self, value: Any) -> Any:
        """Continue the coroutine."""
        return self._opening.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an exception in the coroutine."""
        return self._opening.throw(*error)

    def close(self) -> None:
        """End the coroutine."""
        self._opening.close()

    def __await__(self) -> Generator[Any, Any, Device]:
        return self._opening.__await__()

    def __enter__(self) -> NoReturn:
        self._opening.close()
        raise UsageError("open_device is a coroutine; write async with, in place of with")

    def __exit__(self, *error: object) -> None:
        """Make the object one that ``with`` takes, so that ``__enter__`` can explain."""

    async def __aenter__(self) -> Device:
        self._device = await self._opening
        return self._device

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._device is not None:
            await self._device.__aexit__(kind, error, trace)


def open_device(name: str | None = None, /, **options: Any) -> OpeningDevice:
    """Open a device: ``device = await aio.open_device("ws://gpu-box:3000")``.

    ``async with aio.open_device(…) as device:`` also closes it. Without ``options``, ``name`` is
    one that ``burn_remote.device`` takes, and ``None`` stands for the default device. ``options``
    are those of ``RemoteDevice``, such as ``token``. Raises what these raise.
    """
    return OpeningDevice(_opened(name, options))


async def _opened(name: str | None, options: dict[str, Any]) -> Device:
    if options:
        return await asyncio.to_thread(RemoteDevice, name, **options)
    if name is None:
        return await asyncio.to_thread(default_device)
    return await asyncio.to_thread(named_device, name)


@explained
async def tensor(
    data: Any,
    *,
    dtype: AnyDType | None = None,
    device: AnyDevice | None = None,
    requires_grad: bool = False,
    share: bool = False,
) -> Tensor:
    """Make a tensor as ``burn_remote.tensor`` does, and let the loop run while elements are sent.

    Do not change an array before this returns. Raises what ``burn_remote.tensor`` raises.
    """

    def make() -> Tensor:
        return make_tensor(
            data, dtype=dtype, device=device, requires_grad=requires_grad, share=share
        )

    is_open = device is not None and not isinstance(device, str)
    if is_open and not share and getattr(data, "nbytes", SMALL_BYTES + 1) <= SMALL_BYTES:
        return make()
    position = caller(1)
    made = await asyncio.to_thread(make)
    made.handle.client.session.note_position(made.handle.id, position)
    return made


@explained
async def read(tensors: Iterable[Tensor]) -> list[Array]:
    """Wait for the elements of several tensors, on any devices, in one round trip.

    Returns one NumPy array for each, as ``Tensor.read`` does. All requests are sent before the
    first wait. Raises the error of the first tensor that failed.
    """
    return [await one for one in sent(read_arrays(tensors, "await x.read()"))]


async def load(path: str | os.PathLike[str], **options: Any) -> Any:
    """Load a file as ``burn_remote.load`` does, and let the loop run meanwhile.

    A function given as ``progress`` is called in another thread.
    """
    return await asyncio.to_thread(load_file, path, **options)


async def save(path: str | os.PathLike[str], value: Any, **options: Any) -> None:
    """Save a file as ``burn_remote.save`` does, and let the loop run meanwhile.

    A function given as ``progress`` is called in another thread.
    """
    await asyncio.to_thread(save_file, path, value, **options)


async def sync(*devices: Device) -> None:
    """Wait until everything issued so far on these devices has been executed, in one round trip.

    Raises what ``Device.sync`` raises, for the first device that has a failure.
    """
    for one in sent([one.runners.sync() for one in devices]):
        await one
