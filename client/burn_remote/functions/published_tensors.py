"""Tensors that sessions with one token share by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from burn_remote.autodiff.nodes import plain
from burn_remote.functions.tensor_value import is_tensor
from burn_remote.runner.issuing import recording
from burn_remote.sessions.native.native_session import NativeSession
from burn_remote_protocol.errors import DeviceMismatch, Unsupported, UsageError, shown
from burn_remote_protocol.kept_tensors import MAX_PUBLISHED_NAME_BYTES, is_published_name

if TYPE_CHECKING:
    from burn_remote.functions.device_class import Device
    from burn_remote.functions.tensor import Tensor
    from burn_remote.runner.interface import TensorHandle

__all__ = ["named_session", "open_published", "publish", "unpublish"]


def named_session(device: Device) -> NativeSession:
    """Return the session of a device whose server keeps named tensors.

    Raises ``Unsupported`` for any other device.
    """
    session = device.session
    if not isinstance(session, NativeSession):
        raise Unsupported(f"{device} speaks Burn's dialect, which has no named tensors")
    session.check_publishes()
    return session


def publish(device: Device, name: str, tensor: Tensor) -> None:
    """Keep a tensor under a name; see ``Device.publish``."""
    session = named_session(device)
    if not is_tensor(tensor):
        raise UsageError(
            f"publish takes a tensor, not a {type(tensor).__name__}; write "
            f"device.publish({name!r}, burn_remote.tensor(data, device=device))"
        )
    if tensor.device != device:
        raise DeviceMismatch(
            f"the tensor is on {tensor.device}, not on {device}; write tensor.to(device)"
        )
    handle = plain(tensor.handle)
    if recording.runner is not None:
        # A graph cannot wait for a reply, so the recorder refuses this as it refuses a read.
        recording.runner.read_tensor_async(handle)
    session.publish(_checked_name(name), handle.id, handle.spec).result()


def open_published(device: Device, name: str) -> TensorHandle:
    """Return a handle of the tensor that has a name; see ``Device.published``."""
    session = named_session(device)
    found = dict(session.list_published(_checked_name(name)).result())
    if name not in found:
        raise KeyError(_missing(device, name))
    (handle,) = device.runners.create_empty_handles([found[name]])
    session.open_published(handle.id, handle.spec, name)
    return handle


def unpublish(device: Device, name: str) -> None:
    """Remove a name; see ``Device.unpublish``."""
    if not named_session(device).unpublish(_checked_name(name)).result():
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
