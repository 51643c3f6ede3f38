"""docs/wire-burn-0.21.md and docs/wire-burn-0.22.md show real bytes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.recorded import DATA, golden

DOCS = Path(__file__).parents[3] / "docs"


def shown_in(document: str) -> list[tuple[str, str]]:
    """Return the names and the bytes of the vectors in a document."""
    text = (DOCS / document).read_text("utf-8")
    return re.findall(r"^\| `([^`]+)` \| `([0-9a-f]+)` \|$", text, re.MULTILINE)


SHOWN = shown_in("wire-burn-0.21.md")
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


SHOWN_0_22 = shown_in("wire-burn-0.22.md")
TYPES_0_22 = ("DType", "GraphBindings", "ExecutionError")
VECTORS_0_22 = {
    value.name: value.payload.hex() for name in TYPES_0_22 for value in golden(name, "0.22")
} | {
    message["name"]: message["hex"]
    for message in map(json.loads, (DATA / "messages-0.22.jsonl").read_text("utf-8").splitlines())
}


@pytest.mark.parametrize(("name", "shown"), SHOWN_0_22, ids=[name for name, _ in SHOWN_0_22])
def test_the_bytes_shown_of_burn_0_22_are_those_that_were_recorded(name: str, shown: str) -> None:
    assert shown == VECTORS_0_22[name]


def test_every_kind_of_recorded_message_of_burn_0_22_is_shown_or_described() -> None:
    text = (DOCS / "wire-burn-0.22.md").read_text("utf-8")
    kinds = {name.split("/")[-2] for name in VECTORS_0_22 if name.count("/") > 1 or "Data" in name}

    assert all(f"`{kind}`" in text or f"/{kind}/" in text for kind in kinds)
