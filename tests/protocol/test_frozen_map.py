"""Keys of unpacked values: equal for equal values, and different for all others."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.dialects.bounded_unpacking import unpack_frozen
from burn_remote_protocol.frozen_map import value_key

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.sampled_from("ab"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=8,
)


def key(value: Any) -> bytes:
    return value_key(unpack_frozen(msgpack.packb(value)))


@given(VALUES, VALUES)
def test_only_equal_values_have_equal_keys(one: Any, other: Any) -> None:
    # MessagePack is as exact as keys: it distinguishes 1, 1.0 and True, and maps from arrays.
    assert (key(one) == key(other)) == (msgpack.packb(one) == msgpack.packb(other))


def test_a_map_and_the_array_of_its_pairs_have_different_keys() -> None:
    assert key([{"Float": 0.5}]) != key([[["Float", 0.5]]])


@pytest.mark.parametrize("levels", [20, 500])
def test_deeply_nested_maps_have_no_key(levels: int) -> None:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    with pytest.raises(ValueError):
        key(value)
