"""What a server announces of its extension rows, and what a client makes of it."""

from __future__ import annotations

import pytest

from burn_remote_protocol.errors import Unsupported
from burn_remote_protocol.operations.extensions import ANNOUNCED, check_announced, is_extension
from burn_remote_protocol.operations.families import elementwise_rows, floats
from burn_remote_protocol.operations.releases import EXTENSION
from burn_remote_protocol.operations.row import Row, Signature
from burn_remote_protocol.operations.table import KINDS, TABLE, sign
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorStatus
from support.specs import f32


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


def test_only_operations_that_no_release_of_burn_has_are_extensions() -> None:
    assert is_extension(signed(elementwise_rows.HYPOT))
    assert not is_extension(signed(floats.ARC_TAN2))


@pytest.mark.parametrize("announced", [{}, {"Elementwise": []}, {"LinearAlgebra": ["Hypot"]}])
def test_an_extension_row_that_a_server_does_not_announce_is_refused_by_name(
    announced: dict[str, list[str]],
) -> None:
    with pytest.raises(Unsupported, match=r"ws://box has no Elementwise\.Hypot.*update the server"):
        check_announced(signed(elementwise_rows.HYPOT), announced, "ws://box")


def test_an_announced_row_and_burns_rows_are_sent() -> None:
    check_announced(signed(elementwise_rows.HYPOT), {"Elementwise": ["Hypot"]}, "ws://box")
    check_announced(signed(floats.ARC_TAN2), {}, "ws://box")
