"""Nested containers are walked in order, matched by place, and built again like they were."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest

import burn_remote as br
from burn_remote.arguments.containers import MAX_DEPTH, is_container


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Layer:
    weight: Any
    bias: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    count: Any

    def __post_init__(self) -> None:
        if not isinstance(self.count, int):
            raise TypeError(f"not an integer: {self.count}")


TREE = {"layers": [Layer(1, 2), Layer(3)], "pair": Pair(4, (5, None)), 7: OrderedDict(a=6)}


def test_leaves_have_the_dotted_names_of_pytorch() -> None:
    assert [*br.tree.named_leaves(TREE)] == [
        ("layers.0.weight", 1), ("layers.0.bias", 2), ("layers.1.weight", 3), ("pair.first", 4),
        ("pair.second.0", 5), ("7.a", 6),
    ]  # fmt: skip
    assert br.tree.leaves(TREE) == [1, 2, 3, 4, 5, 6]
    assert [*br.tree.named_leaves(8)] == [("", 8)]
    assert br.tree.leaves(None) == []


def test_map_keeps_the_classes_of_containers_and_none() -> None:
    found = br.tree.map(lambda leaf: leaf * 10, TREE)
    assert found == {
        "layers": [Layer(10, 20), Layer(30)],
        "pair": Pair(40, (50, None)),
        7: OrderedDict(a=60),
    }
    assert type(found["pair"]) is Pair
    assert type(found[7]) is OrderedDict
    assert TREE["pair"] == Pair(4, (5, None))


def test_map_matches_dictionaries_by_key_and_passes_none_of_other_containers() -> None:
    found = br.tree.map(lambda *leaves: leaves, {"a": 1, "b": 2}, {"b": None, "a": 3})
    assert found == {"a": (1, 3), "b": (2, None)}


def test_map_passes_whole_containers_in_the_place_of_a_leaf() -> None:
    assert br.tree.map(lambda leaf, other: other, [1, 2], [{"m": 1}, (2, 3)]) == [{"m": 1}, (2, 3)]


def test_a_data_class_is_rebuilt_without_its_checks() -> None:
    assert br.tree.map(str, Checked(3)).count == "3"


def test_data_classes_of_burn_remote_and_classes_themselves_are_leaves() -> None:
    assert not is_container(br.quant_scheme())
    assert not is_container(br.float32)
    assert not is_container(Layer)


@pytest.mark.parametrize(
    "first, second, text",
    [
        ({"a": [1]}, {"a": (1,)}, "differ at a: expected list, not tuple"),
        ({"a": [1, 2]}, {"a": [1]}, "differ at a: expected a list of 2, not of 1"),
        ({"a": {"b": 1}}, {"a": {"c": 1}}, "differ at a: the key 'b' is missing"),
        ({"a": 1}, {"a": 1, "c": 1}, "differ: the key 'c' is unexpected"),
        ([Layer(1)], [Pair(1, 2)], "differ at 0: expected Layer, not Pair"),
        ([1], 2, "differ: expected list, not int"),
        ({"a": [{"b": [1]}]}, {"a": [{"b": 2}]}, r"differ at a\.0\.b: expected list, not int"),
    ],
)
def test_containers_that_differ_are_refused_with_the_place(
    first: Any, second: Any, text: str
) -> None:
    with pytest.raises(br.ArgumentMismatch, match=text):
        br.tree.map(lambda *leaves: leaves, first, second)


def test_a_container_in_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(br.ArgumentMismatch, match=f"deeper than {MAX_DEPTH}"):
        br.tree.leaves(endless)
    with pytest.raises(br.ArgumentMismatch, match=f"deeper than {MAX_DEPTH}"):
        br.tree.map(str, endless)


def test_a_field_without_a_value_is_named() -> None:
    with pytest.raises(br.ArgumentMismatch, match=r"a field of a Layer has no value.*weight"):
        br.tree.leaves([Layer.__new__(Layer)])
