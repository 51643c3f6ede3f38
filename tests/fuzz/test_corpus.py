"""The fuzz targets accept all seeds, stored inputs and former crashes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.kept import kept_inputs
from fuzz.targets import SEEDS, TARGETS

CORPUS = Path(__file__).parent / "corpus"
STORED = [path.name.removesuffix(".msgpack.xz") for path in sorted(CORPUS.glob("*.msgpack.xz"))]
FOUND = [path for name in TARGETS for path in sorted((CORPUS / name).glob("*"))]


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_of_a_target_do_not_break_it(name: str) -> None:
    seeds = [*SEEDS[name]()]
    assert seeds
    for seed in seeds:
        TARGETS[name](seed)
        TARGETS[name](seed[: len(seed) // 2])


@pytest.mark.parametrize("name", STORED)
def test_stored_inputs_of_a_target_do_not_break_it(name: str) -> None:
    inputs = kept_inputs(name)
    assert inputs
    for data in inputs:
        TARGETS[name](data)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_inputs_that_broke_a_target_before_no_longer_do(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())
