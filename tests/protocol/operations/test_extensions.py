"""The extension rows that a server announces, and the operations that a client then refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burn_remote_protocol.dtypes import C64
from burn_remote_protocol.errors import Unsupported
from burn_remote_protocol.operations.extensions import (
    ANNOUNCED,
    announces,
    check_announced,
    is_announced,
)
from burn_remote_protocol.operations.families import floats, matrix_rows, numeric
from burn_remote_protocol.operations.row import Row, Signature
from burn_remote_protocol.operations.table import KINDS, TABLE, sign
from burn_remote_protocol.operations.vocabularies import EXTENSION
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorSpec, TensorStatus
from support.specs import f32

SINC = replace(floats.ARC_TAN2, name="Sinc", lifetime=EXTENSION)


def signed(row: Row) -> Signature:
    use = TensorUse(f32(2), TensorStatus.READ_ONLY)
    return sign(row, use, use, TensorUse(f32(2), TensorStatus.NOT_INIT))


def test_every_extension_row_is_announced_under_its_kind() -> None:
    rows = {(row.family, row.name) for row in TABLE.values() if row.lifetime == EXTENSION}
    announced = {(KINDS[kind].family, name) for kind, names in ANNOUNCED.items() for name in names}

    assert rows <= announced


def test_a_kind_of_extension_rows_has_no_row_of_its_own_name() -> None:
    # On the wire, such a row would be read as a kind without variants, like Drop.
    assert not {row.name for row in TABLE.values() if row.lifetime == EXTENSION} & set(KINDS)


def test_operations_that_burn_0_21_lacks_are_announced() -> None:
    assert is_announced(signed(SINC))
    assert is_announced(signed(floats.HYPOT))
    assert not is_announced(signed(floats.ARC_TAN2))
    assert "Hypot" in ANNOUNCED["Float"]
    assert "ArcTan2" not in ANNOUNCED["Float"]
    assert "Relu" in ANNOUNCED["Activation"]


def test_a_row_is_announced_under_each_kind_that_has_it() -> None:
    assert "Neg" in ANNOUNCED["NumericFloat"]
    assert "Neg" in ANNOUNCED["NumericInt"]
    assert announces(ANNOUNCED, numeric.NEG)
    assert not announces({"NumericInt": ["Neg"]}, numeric.NEG)
    assert announces({}, numeric.ADD)


@pytest.mark.parametrize("announced", [{}, {"Float": []}, {"LinearAlgebra": ["Hypot"]}])
def test_an_extension_row_that_a_server_does_not_announce_is_refused_by_name(
    announced: dict[str, list[str]],
) -> None:
    with pytest.raises(Unsupported, match=r"ws://box has no Float\.Hypot.*update the server"):
        check_announced(signed(floats.HYPOT), announced, "ws://box")


def test_a_server_that_announces_real_matrices_only_is_refused_by_name() -> None:
    old = {"LinearAlgebra": ["Inv", "Eigvals"]}
    matrix = TensorUse(TensorSpec((2, 2), C64), TensorStatus.READ_ONLY)
    out = TensorUse(TensorSpec((2, 2), C64), TensorStatus.NOT_INIT)
    values = TensorUse(TensorSpec((2,), C64), TensorStatus.NOT_INIT)
    message = r"ws://box has no LinearAlgebra\.Inv of complex numbers.*update the server"

    with pytest.raises(Unsupported, match=message):
        check_announced(sign(matrix_rows.INV, matrix, out), old, "ws://box")
    check_announced(sign(matrix_rows.EIGVALS, matrix, values), old, "ws://box")


def test_an_announced_row_and_burns_rows_are_sent() -> None:
    check_announced(signed(floats.HYPOT), {"Float": ["Hypot"]}, "ws://box")
    check_announced(signed(floats.ARC_TAN2), {}, "ws://box")
