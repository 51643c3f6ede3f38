"""The tables in docs/gradients.md are those of the rules."""

from __future__ import annotations

from pathlib import Path

from support.gradient_table import refused_rows, ruled_rows

DOCUMENT = Path(__file__).parents[3] / "docs" / "gradients.md"


def test_the_document_lists_every_row_with_its_rule_or_reason() -> None:
    text = DOCUMENT.read_text("utf-8")
    assert ruled_rows() in text, "run support.gradient_table.ruled_rows() and insert its result"
    assert refused_rows() in text, "run support.gradient_table.refused_rows() and insert its result"
