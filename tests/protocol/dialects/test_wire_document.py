"""docs/wire-burn-0.21.md shows real bytes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.recorded import golden

DOCUMENT = (Path(__file__).parents[3] / "docs" / "wire-burn-0.21.md").read_text("utf-8")
SHOWN = re.findall(r"^\| `([^`]+)` \| `([0-9a-f]+)` \|$", DOCUMENT, re.MULTILINE)
TYPES = (
    "TensorIr", "DType", "Slice", "ScalarIr", "SessionId", "Task", "OperationIr", "TaskResponse",
    "DataServiceMessage",
)  # fmt: skip
VECTORS = {value.name: value.payload.hex() for name in TYPES for value in golden(name)}


@pytest.mark.parametrize(("name", "shown"), SHOWN, ids=[name for name, _ in SHOWN])
def test_the_bytes_shown_are_those_of_the_golden_vector(name: str, shown: str) -> None:
    assert shown == VECTORS[name]


def test_every_kind_of_message_is_shown() -> None:
    shown = {name.split("/")[0] for name, _ in SHOWN}
    assert shown == set(TYPES)
