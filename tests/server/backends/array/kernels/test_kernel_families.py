"""The kernels of neural-network modules cover each variant once."""

from __future__ import annotations

from collections import Counter

import numpy as np

from burn_remote_protocol.operations.table import TABLE
from burn_remote_server.backends.array.kernels.kernel_families import (
    MODULE_FAMILIES,
    module_families,
)


def test_every_module_row_of_the_table_has_exactly_one_kernel() -> None:
    kernels = Counter(name for family in module_families(np) for name in family.table())
    rows = {name for family, name in TABLE if family == "Module"}
    assert kernels == Counter(rows)


def test_low_precision_variants_are_variants_of_the_family() -> None:
    for family in module_families(np):
        assert family.family == "Module"
        assert family.low_precision <= set(family.table())


def test_there_is_one_family_per_subject() -> None:
    assert [type(family) for family in module_families(np)] == list(MODULE_FAMILIES)
