"""Random programs give the same bits and failures one by one, as graphs and fused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.random_programs import check

# Names of NumPy's x86 features, with which it chooses its loops at run time. Other processors have
# other names, and NumPy ignores names that it does not know.
VECTOR_FEATURES = (
    "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
)


@example(22710)  # a power of a reversed input, whose copies are in C order
@given(st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_fused_programs_give_the_bits_and_failures_of_single_operations(seed: int) -> None:
    check(seed)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_compiled_programs_give_the_bits_and_failures_of_single_operations(seed: int) -> None:
    pytest.importorskip("llvmlite", reason="the extra fusion is not installed")
    check(seed, compiles=True)


@pytest.mark.parametrize("way", ["blocks", "compiled"])
def test_fused_programs_give_the_same_bits_without_wide_vectors(way: str) -> None:
    if way == "compiled":
        pytest.importorskip("llvmlite", reason="the extra fusion is not installed")
    count = 100 if way == "blocks" else 25
    environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": VECTOR_FEATURES}
    result = subprocess.run(
        [sys.executable, "-m", "support.random_programs", str(count), "0", way],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stderr
    fused = int(result.stdout.removeprefix(f"{count} programs, ").split()[0])
    assert fused > 10 * count
