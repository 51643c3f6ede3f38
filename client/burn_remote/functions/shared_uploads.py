"""Uploads of elements that the server may already have from a session with the same token.

The client hashes the elements and asks the server for tensors with this digest, which takes about
100 bytes and a round trip. It sends the elements only if the server does not have them. The server
then keeps them for later sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from burn_remote.runner.storage_tasks import FillTensor, KeepUpload, OpenUpload
from burn_remote_protocol.dialects.bounded_unpacking import MAX_LIST_LENGTH
from burn_remote_protocol.kept_tensors import content_hash

if TYPE_CHECKING:
    from burn_remote.runner.interface import RunnerClient, TensorHandle
    from burn_remote_protocol.tensors import TensorData, TensorSpec

__all__ = ["send_shared"]

# Below this, sending the elements takes less time than asking for them.
MIN_BYTES: Final = 64 * 1024


def send_shared(
    client: RunnerClient,
    specs: Sequence[TensorSpec],
    elements: Callable[[], Iterable[TensorData]],
) -> list[TensorHandle]:
    """Make tensors of elements that the server may already have; return their handles.

    ``elements()`` iterates over the elements of each tensor, in the order of ``specs``. It is
    called once to hash them and, if the server does not have them, once more to send them. If the
    server does not keep elements of this size, they are sent without a hash.
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
    # Created before the request, so that a Ctrl-C drops whatever the server has made by then.
    handles = client.create_empty_handles(specs)
    if not client.storage_task(OpenUpload(digest), handles).result():
        for handle, data in zip(handles, elements(), strict=True):
            client.storage_task(FillTensor(data), [handle])
        client.storage_task(KeepUpload(digest), handles)
    return handles
