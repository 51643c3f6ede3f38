"""Tensors that sessions with one token share by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burn_remote.autodiff.nodes import plain
from burn_remote.functions.tensor_value import is_tensor
from burn_remote.runner.interface import distinction
from burn_remote.runner.storage_tasks import (
    ListNames,
    OpenPublishedTensor,
    PublishTensor,
    RemoveName,
)
from burn_remote.sessions.native.native_session import NativeSession
from burn_remote_protocol.errors import (
    ArgumentMismatch,
    DeviceMismatch,
    Unsupported,
    UsageError,
    shown,
    type_name,
)
from burn_remote_protocol.kept_tensors import MAX_PUBLISHED_NAME_BYTES, is_published_name

if TYPE_CHECKING:
    from burn_remote.functions.device_class import Device
    from burn_remote.functions.tensor import Tensor
    from burn_remote.runner.interface import TensorHandle
    from burn_remote_protocol.tensors import TensorSpec

__all__ = ["list_published", "open_published", "publish", "unpublish"]


def check_has_names(device: Device) -> None:
    """Raise ``Unsupported`` unless the device's server keeps named tensors."""
    session = device.session
    if not isinstance(session, NativeSession):
        raise Unsupported(f"{device} speaks Burn's dialect, which has no named tensors")
    session.check_publishes()


def publish(device: Device, name: str, tensor: Tensor) -> None:
    """Keep a tensor under a name; see ``Device.publish``."""
    check_has_names(device)
    if not is_tensor(tensor):
        if is_tensor(name):
            raise ArgumentMismatch(f"the name comes first; write publish({shown(tensor)}, x)")
        raise ArgumentMismatch(
            f"publish takes a tensor, not an object of type {type_name(tensor)}; write "
            f"device.publish({shown(name)}, burn_remote.tensor(data, device=device))"
        )
    if tensor.device != device:
        raise DeviceMismatch(
            f"the tensor is on {tensor.device}, not on {device}"
            f"{distinction(tensor.device, device)}; write tensor.to(device)"
        )
    handle = plain(tensor.handle)
    device.runners.storage_task(PublishTensor(_checked_name(name)), [handle]).result()


def list_published(device: Device, name: str | None = None) -> dict[str, TensorSpec]:
    """Return all published names and their specs; with ``name``, only this one, if it exists."""
    check_has_names(device)
    return dict(device.runners.storage_task(ListNames(name), []).result())


def open_published(device: Device, name: str) -> TensorHandle:
    """Return a handle of the tensor that has a name; see ``Device.published``."""
    found = list_published(device, _checked_name(name))
    if name not in found:
        raise KeyError(_missing(device, name))
    (handle,) = device.runners.create_empty_handles([found[name]])
    device.runners.storage_task(OpenPublishedTensor(name), [handle])
    return handle


def unpublish(device: Device, name: str) -> None:
    """Remove a name; see ``Device.unpublish``."""
    check_has_names(device)
    if not device.runners.storage_task(RemoveName(_checked_name(name)), []).result():
        raise KeyError(_missing(device, name))


def _missing(device: Device, name: str) -> str:
    return f"no session with this token has published {shown(name)} on {device}"


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not is_published_name(name):
        raise UsageError(
            f"the name of a published tensor is a printable text of 1 to "
            f"{MAX_PUBLISHED_NAME_BYTES} bytes, not {shown(name)}"
        )
    return name
