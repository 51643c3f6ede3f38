"""Values of the native dialect are accepted within their bounds and refused outside of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.dialects.native_values import (
    MAX_HANDLE_BYTES,
    count,
    exactly,
    memory_handle,
    seconds,
    spec_from_wire,
    spec_to_wire,
    text,
    transfer_id,
)
from burn_remote_protocol.dtypes import ALL_DTYPES, F32
from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.tensors import TensorSpec

nonce = partial(exactly, 4, "a nonce")


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (count, 0),
        (count, 2**64 - 1),
        (partial(count, maximum=7), 7),
        (transfer_id, bytes(32)),
        (nonce, b"four"),
        (memory_handle, b"h"),
        (memory_handle, bytes(MAX_HANDLE_BYTES)),
        (seconds, 0.0),
        (seconds, 86_400.0),
        (text, ""),
        (text, "é" * 1024),
    ],
)
def test_a_value_within_its_bounds_is_returned(read: Callable[[Any], Any], value: Any) -> None:
    assert read(value) == value


@pytest.mark.parametrize(
    ("read", "value", "says"),
    [
        (count, -1, "from 0 to 18446744073709551615, not -1"),
        (count, 2**64, "from 0 to"),
        (count, True, "from 0 to"),
        (count, 1.0, "from 0 to"),
        (count, None, "from 0 to"),
        (partial(count, maximum=7), 8, "from 0 to 7, not 8"),
        (transfer_id, bytes(31), "a transfer id is 32 bytes"),
        (transfer_id, bytearray(32), "a transfer id is 32 bytes"),
        (transfer_id, 5, "a transfer id is 32 bytes, not 5"),
        (nonce, b"three", "a nonce has 4 bytes, not 5 bytes"),
        (nonce, "four", "a nonce has 4 bytes, not str"),
        (memory_handle, b"", "1 to 256 bytes"),
        (memory_handle, bytes(MAX_HANDLE_BYTES + 1), "1 to 256 bytes"),
        (seconds, -1, "from 0 to 86,400, not -1"),
        (seconds, 86_401, "from 0 to 86,400"),
        (seconds, float("nan"), "from 0 to 86,400, not nan"),
        (seconds, float("inf"), "from 0 to 86,400"),
        (seconds, True, "from 0 to 86,400"),
        (seconds, "1", "from 0 to 86,400"),
        (text, "a" * 1025, "at most 1024 characters"),
        (text, b"bytes", "at most 1024 characters"),
    ],
)
def test_a_value_outside_of_its_bounds_is_refused_with_what_was_expected(
    read: Callable[[Any], Any], value: Any, says: str
) -> None:
    with pytest.raises(ProtocolViolation, match=says):
        read(value)


def test_whole_seconds_become_a_floating_point_number() -> None:
    assert type(seconds(30)) is float


def test_the_error_for_bytes_of_a_wrong_length_does_not_repeat_them() -> None:
    with pytest.raises(ProtocolViolation) as caught:
        nonce(b"a-secret")
    assert "secret" not in str(caught.value)


def test_errors_do_not_repeat_a_huge_value() -> None:
    for read in (count, transfer_id, memory_handle, seconds, text):
        with pytest.raises(ProtocolViolation) as caught:
            read(b"x" * 1_000_000 if read is not transfer_id else "x" * 1_000_000)
        assert len(str(caught.value)) < 1000


def test_a_spec_is_its_dimensions_and_the_name_of_its_dtype() -> None:
    assert spec_to_wire(TensorSpec((2, 3), F32)) == [[2, 3], "F32"]
    assert spec_from_wire([[2, 3], "F32"]) == TensorSpec((2, 3), F32)


@given(st.lists(st.integers(0, 8), max_size=5), st.sampled_from(ALL_DTYPES))
def test_every_spec_survives_encoding_and_decoding(shape: list[int], dtype: Any) -> None:
    spec = TensorSpec(tuple(shape), dtype)
    assert spec_from_wire(spec_to_wire(spec)) == spec


@pytest.mark.parametrize("dims", [[-1], [True], ["2"], [1.0], [1] * 40])
def test_an_invalid_shape_in_a_spec_is_refused(dims: list[Any]) -> None:
    with pytest.raises(ProtocolViolation):
        spec_from_wire([dims, "F32"])


def test_a_shape_of_too_many_elements_is_refused() -> None:
    with pytest.raises(LimitExceeded):
        spec_from_wire([[2**40, 2**40], "F32"])


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="F33"):
        spec_from_wire([[2], "F33"])
