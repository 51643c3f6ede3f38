"""Which session serves which device, and how does a tensor get from one to the other?"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from burn_remote.chosen_device import checked_device
from burn_remote.runner import TensorHandle
from burn_remote.sessions.burn_session import BurnSession
from burn_remote.sessions.native_session import NativeSession
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.ids import new_transfer_id, new_transfer_number

if TYPE_CHECKING:
    from burn_remote.device import Device

__all__ = ["move"]

# An exposed tensor that nobody fetched is freed after this time. Larger: a target that died leaves
# tensors on the source longer. Smaller: a target with a long queue comes too late.
EXPIRES_SECONDS: Final = 300.0

# Expose and fetch of one move go out together: two sessions that wait for each other's tensors then
# wait for exposes that were sent before, never in a circle.
_moving = threading.Lock()


def move(handle: TensorHandle, target: Device) -> TensorHandle:
    """Return a handle of the same tensor on another device; nothing waits between servers, but
    where the source speaks Burn's dialect until the tensor is there.

    Both devices on servers: the target's server fetches from the source's, and this process sees
    none of the elements. One of them local: the elements pass through this process, which waits.
    """
    source, target = handle.client.device, checked_device(target)
    if source is target or handle.client is target.client:
        return handle
    source_session, target_session = source.session, target.session
    if source.transfer_domain is None or source.transfer_domain != target.transfer_domain:
        return target_session.register_tensor_data(handle.client.read_tensor_async(handle).result())
    address = source_session.welcome.peer_address
    if not address:
        raise UsageError(f"{source} does not say where other servers can reach it")
    both_native = isinstance(source_session, NativeSession) and isinstance(
        target_session, NativeSession
    )
    transfer = new_transfer_id() if both_native else new_transfer_number()
    if isinstance(source_session, BurnSession):
        # The tensor is there when this returns: the fetch waits for nobody, in whatever order.
        source_session.expose(handle, transfer, EXPIRES_SECONDS)
        return target_session.fetch(transfer, address, handle.spec)
    with _moving:
        source_session.expose(handle, transfer, EXPIRES_SECONDS)
        return target_session.fetch(transfer, address, handle.spec)
