"""Moves of tensors between devices.

A move exposes the tensor in the source's session and then has the target's session fetch it. Both
are asynchronous, and moves take no lock of their own: a frozen server delays no move between
others. Sessions that wait for each other's tensors cannot deadlock. A session waits only in an
operation behind a fetch; the expose for that fetch was issued before the fetch was. If that expose
is itself behind another fetch in its session, then that fetch was issued earlier still. Around a
circle of waiting sessions the times of the fetches would decrease for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from burn_remote.chosen_device import checked_device
from burn_remote.runner import TensorHandle
from burn_remote.sessions.native_session import NativeSession
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.ids import new_transfer_id, new_transfer_number

if TYPE_CHECKING:
    from burn_remote.device import Device

__all__ = ["move"]

# When an exposed tensor that nobody fetched is freed. Larger: the source holds tensors longer for a
# target that died. Smaller: a target with a long queue comes too late.
EXPIRES_SECONDS: Final = 300.0


def move(handle: TensorHandle, target: Device) -> TensorHandle:
    """Return a handle of the same tensor on another device.

    Between servers the target's server fetches the elements from the source's, and this process
    waits for nothing, except for the expose where the source speaks Burn's dialect. To or from a
    local device the elements pass through this process, which waits for them.
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
    # Returns when the expose was sent, in Burn's dialect when it was executed: the fetch, which is
    # issued now, never waits for an expose that comes behind it.
    source_session.expose(handle, transfer, EXPIRES_SECONDS)
    return target_session.fetch(transfer, address, handle.spec)
