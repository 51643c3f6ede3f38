"""No decoder takes a map in the place of an array, or an array in the place of a map."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest

from burn_remote_protocol.dialects import burn_0_22
from burn_remote_protocol.dialects.burn_0_21 import decode_init, decode_tasks
from burn_remote_protocol.dialects.burn_0_21_responses import decode_data, decode_data_request
from burn_remote_protocol.dialects.burn_0_21_responses import decode_reply as decode_reply_0_21
from burn_remote_protocol.dialects.burn_0_22_responses import decode_opening
from burn_remote_protocol.dialects.burn_0_22_responses import decode_reply as decode_reply_0_22
from burn_remote_protocol.dialects.native import Batch, decode_frame, decode_task
from burn_remote_protocol.errors import ProtocolViolation
from fuzz.targets import SEEDS


def native(frame: bytes) -> object:
    message = decode_frame(frame)
    return [decode_task(task) for task in message.tasks] if type(message) is Batch else message


# Fields that these decoders leave as they are: the operations of a graph are decoded as operations
# are elsewhere, when it is registered, and the address is not used.
LEFT_PACKED = {"RegisterAndExecuteGraph": 2, "ExposeTensorRemote": 4}


def messages_0_22(frame: bytes) -> object:
    """Decode messages; those that cannot be decoded are errors in the result."""
    messages = [*burn_0_22.decode_messages(frame)]
    for message in messages:
        if isinstance(message, ProtocolViolation):
            raise message
    return messages


def swapped(wire: Any) -> Iterator[Any]:
    """Yield a value with one array written as a map, or one map as an array, in each place."""
    if isinstance(wire, dict):
        yield [[key, value] for key, value in wire.items()]
        for key, value in wire.items():
            left = LEFT_PACKED.get(key)
            for other in swapped(value):
                if left is None or other[left : left + 1] == value[left : left + 1]:
                    yield {**wire, key: other}
    elif isinstance(wire, list):
        if not wire:
            yield {}
        elif all(
            isinstance(each, list) and len(each) == 2 and isinstance(each[0], int | str)
            for each in wire
        ):
            yield dict(wire)
        for place, each in enumerate(wire):
            for other in swapped(each):
                yield [*wire[:place], other, *wire[place + 1 :]]


DECODERS: dict[str, tuple[tuple[Callable[[bytes], object], int], ...]] = {
    "native_frame": ((native, 1),),
    "burn_frame": tuple(
        (decode, 0)
        for decode in (
            decode_tasks, decode_init, decode_reply_0_21, decode_data, decode_data_request,
        )
    ),
    "burn_0_22_frame": tuple(
        (decode, 0)
        for decode in (
            burn_0_22.decode_init, messages_0_22, decode_opening, decode_reply_0_22,
        )
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", DECODERS)
def test_maps_and_arrays_are_not_exchanged(target: str) -> None:
    tried, accepted = 0, []
    for decode, head in DECODERS[target]:
        for frame in SEEDS[target]():
            try:
                decode(frame)
                wire = msgpack.unpackb(frame[head:], strict_map_key=False)
            except (ProtocolViolation, ValueError, msgpack.UnpackException):
                continue
            for other in swapped(wire):
                tried += 1
                try:
                    decode(frame[:head] + msgpack.packb(other))
                except ProtocolViolation:
                    continue
                accepted.append((decode.__name__, wire, other))
    assert accepted == []
    assert tried > 20
