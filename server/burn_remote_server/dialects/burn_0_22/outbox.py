"""The queue of a session's reply frames in the form of Burn 0.22."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.dialects.burn_0_22_responses import encode_profile, encode_reply
from burn_remote_protocol.messages import Fetch
from burn_remote_server.dialects.burn_0_21.outbox import BurnOutbox
from burn_remote_server.hosting.host import Device
from burn_remote_server.tensors.exposed_tensors import Key
from burn_remote_server.tensors.slots import InFlight

__all__ = ["LOCAL", "Burn22Outbox"]

# The address of a fetch from another session of the same client on this server. A client cannot
# name it: every address of a peer has a scheme.
LOCAL: Final = ""


class Burn22Outbox(BurnOutbox):
    """The queue of reply frames between the engine and the handler of the socket."""

    encode = staticmethod(encode_reply)

    def __init__(self, device: Device, max_waiting_bytes: int) -> None:
        super().__init__(device, max_waiting_bytes)
        # The keys of local fetches that are about to begin, by tensor.
        self.local_keys: Final[dict[int, Key]] = {}

    def profile(self, request: int, answer: str) -> None:
        """Queue the reply to the start or end of a profile."""
        self.append([encode_profile(request, answer)])

    def fetch(self, task: Fetch, slot: InFlight) -> None:
        """Start a fetch."""
        if task.address != LOCAL:
            super().fetch(task, slot)
            return
        key = self.local_keys.pop(task.tensor)
        self._device.host.start_local_fetch(self, self._device.backend, task, slot, key)
