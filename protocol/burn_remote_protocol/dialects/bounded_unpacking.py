"""Bounded unpacking of MessagePack from a peer."""

from __future__ import annotations

from typing import Any, Final

import msgpack

from burn_remote_protocol.errors import ProtocolViolation

__all__ = ["MAX_LIST_LENGTH", "unpack_frozen", "unpack_lists"]

# The unpacker allocates a list as soon as its header claims a length, at most 1,024 of them nested:
# 8 bytes × this × 1,024 = 32 MiB is the most that a hostile frame can make it allocate. It also
# limits the tasks of a batch and the tensors of a concatenation.
MAX_LIST_LENGTH: Final = 4096


def unpack_frozen(body: bytes | memoryview) -> Any:
    """Unpack with tuples for lists and tuples of pairs for maps: hashable, and no copy made later.

    Raises ``ProtocolViolation`` for anything but one MessagePack value.
    """
    return _unpack(body, use_list=False, object_pairs_hook=tuple)


def unpack_lists(body: bytes | memoryview) -> Any:
    """Unpack with lists and dictionaries. Raises ``ProtocolViolation`` like ``unpack_frozen``."""
    return _unpack(body, use_list=True, strict_map_key=False)


def _unpack(body: bytes | memoryview, **how: Any) -> Any:
    try:
        return msgpack.unpackb(
            body, max_array_len=MAX_LIST_LENGTH, max_map_len=MAX_LIST_LENGTH, **how
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        text = str(error) or type(error).__name__
        raise ProtocolViolation(f"not MessagePack: {text}") from None
