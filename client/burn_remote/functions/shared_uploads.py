"""Uploads of elements that the server may have already, from a session of the same token.

The client hashes the elements and asks for a content with this digest: about 100 bytes and a round
trip. Only if the server has none are the elements sent, and the server keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from burn_remote.runner.interface import OwningHandle
from burn_remote_protocol.contents import content_hash
from burn_remote_protocol.dialects.bounded_unpacking import MAX_LIST_LENGTH

if TYPE_CHECKING:
    from burn_remote.runner.interface import RunnerClient, TensorHandle
    from burn_remote_protocol.tensors import TensorData, TensorSpec

__all__ = ["send_shared"]

# Sending fewer bytes takes less time than the round trip of the question.
MIN_BYTES: Final = 64 * 1024


def send_shared(
    client: RunnerClient,
    specs: Sequence[TensorSpec],
    elements: Callable[[], Iterable[TensorData]],
) -> list[TensorHandle]:
    """Make tensors with these elements, of which the server may have a copy; return their handles.

    ``elements`` iterates over those of ``specs``, in order. It is called again if they must be sent
    after they have been hashed. Where the server keeps no contents, or none of this size, they are
    just sent.
    """
    session: Any = client.session
    total = sum(spec.nbytes for spec in specs)
    largest = getattr(session, "content_bytes", 0)  # Burn's dialect keeps none
    if not MIN_BYTES <= total <= largest or len(specs) > MAX_LIST_LENGTH:
        return [client.register_tensor_data(data) for data in elements()]
    hashing = content_hash(specs)
    for data in elements():
        hashing.update(data.bytes)
    digest = hashing.digest()
    first = session.reserve(len(specs))
    # The handles before the question: an interrupt drops whatever the server has made by then.
    handles: list[TensorHandle] = [
        OwningHandle(client, first + place, spec) for place, spec in enumerate(specs)
    ]
    if not session.open_content(digest, first, len(specs)).result():
        for handle, data in zip(handles, elements(), strict=True):
            session.upload(handle.id, data)
        session.keep_content(digest, first, specs)
    return handles
