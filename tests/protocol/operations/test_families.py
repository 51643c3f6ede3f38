"""Each family's rows, against the operations that Burn 0.21 and 0.22 wrote."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgpack
import pytest

from burn_remote_protocol.errors import BurnRemoteError, ProtocolViolation
from burn_remote_protocol.operations.encoding import decode_operation, encode_operation
from burn_remote_protocol.operations.families import (
    activations,
    base,
    bools,
    convolution_rows,
    floats,
    ints,
    layers,
    numeric,
    pooling_rows,
    sampling,
    session,
)
from burn_remote_protocol.operations.fields import Role
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.table import ROWS
from burn_remote_protocol.operations.vocabularies import Vocabulary
from support.recorded import Golden, golden, recorded_operations, recordings, schema
from support.specs import f32, flags, i32, i64, made

FAMILIES: dict[ModuleType, str] = {
    activations: "Activation",
    base: "Base",
    numeric: "Numeric",
    floats: "Float",
    ints: "Int",
    bools: "Bool",
    layers: "Module",
    convolution_rows: "Module",
    pooling_rows: "Module",
    sampling: "Module",
}
RELEASES = {"0.21": Vocabulary.BURN_0_21, "0.22": Vocabulary.BURN_0_22}
MODULES = [*FAMILIES, session]


def rows_of(module: ModuleType) -> list[Row]:
    """Return the rows that a module names."""
    return [value for value in vars(module).values() if isinstance(value, Row)]


def written(module: ModuleType) -> Iterator[tuple[Golden, Any, Vocabulary]]:
    """Yield the golden operations of a module's rows, decoded."""
    rows = set(map(id, module.ROWS))
    for release, vocabulary in RELEASES.items():
        for line in golden("OperationIr", release):
            try:
                operation = decode_operation(line.tuples, vocabulary)
            except ProtocolViolation:
                assert "SyncCollective" in line.name  # not in the table yet
                continue
            if id(operation.signature.row) in rows:
                yield line, operation, vocabulary


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.split(".")[-1])
class TestEveryFamily:
    def test_each_row_that_a_module_names_is_in_its_table_once(self, module: ModuleType) -> None:
        assert sorted(map(str, module.ROWS)) == sorted(map(str, rows_of(module)))
        assert len(set(map(str, module.ROWS))) == len(module.ROWS)
        assert all(row in ROWS for row in module.ROWS)

    def test_burn_wrote_an_operation_of_each_row(self, module: ModuleType) -> None:
        seen = {str(operation.signature.row) for _, operation, _ in written(module)}
        assert seen == set(map(str, module.ROWS))

    def test_burns_operations_are_encoded_to_the_bytes_they_were_decoded_from(
        self, module: ModuleType
    ) -> None:
        for line, operation, vocabulary in written(module):
            assert msgpack.packb(encode_operation(operation, vocabulary)) == line.payload, line.name

    def test_the_rule_of_each_row_infers_its_outputs(self, module: ModuleType) -> None:
        for row in module.ROWS:
            outputs = [field for field in row.fields if field.role is Role.OUTPUT]
            assert outputs or row is session.DROP
            assert callable(row.rule)
            assert callable(row.estimates.cost)

    def test_the_family_is_the_one_on_the_wire(self, module: ModuleType) -> None:
        for row in module.ROWS:
            assert row.family == FAMILIES.get(module, row.family)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("family", sorted({*FAMILIES.values()}))
def test_the_modules_have_all_variants_of_burn_together(family: str, release: str) -> None:
    rows = [
        row.name
        for module, of in FAMILIES.items()
        if of == family
        for row in module.ROWS
        if row.lifetime.includes(RELEASES[release])
    ]
    assert sorted(rows) == sorted(schema(release)["enums"].get(f"{family}OperationIr", []))


@pytest.mark.parametrize("recording", recordings())
def test_burns_clients_declared_what_the_rules_infer(recording: str) -> None:
    seen = 0
    for name, wire in recorded_operations(recording):
        signature = decode_operation(wire).signature
        if signature.row is session.DROP:
            continue
        inferred = signature.row.rule(signature.call)
        shapes = [spec.shape for spec in signature.outputs]
        assert [spec.shape for spec in inferred] == shapes, (name, str(signature.row))
        seen += 1
    assert seen


# One row of each module with the result that its definition gives, counted by hand.
@pytest.mark.parametrize(
    ("row", "inputs", "requested", "parameters", "outputs"),
    [
        (base.SWAP_DIMS, [f32(2, 3, 4)], [], {"dim1": 0, "dim2": 2}, [f32(4, 3, 2)]),
        (base.CAT, [(i64(2, 3), i64(5, 3))], [], {"dim": 0}, [i64(7, 3)]),
        (numeric.ADD, [f32(4, 1), f32(3)], [], {}, [f32(4, 3)]),
        (floats.MATMUL, [f32(7, 2, 3), f32(1, 3, 5)], [], {}, [f32(7, 2, 5)]),
        (ints.BITWISE_AND, [i64(2), i64(2)], [], {}, [i64(2)]),
        (bools.NOT, [flags(3)], [], {}, [flags(3)]),
        (layers.EMBEDDING, [f32(10, 4), i64(2, 3)], [], {}, [f32(2, 3, 4)]),
        (session.INIT, [], [f32(2)], {}, [f32(2)]),
        (session.DROP, [f32(2)], [], {}, []),
    ],
    ids=lambda value: str(value) if isinstance(value, Row) else "",
)
def test_a_rows_outputs_match_its_definition(
    row: Row, inputs: list[Any], requested: list[Any], parameters: Any, outputs: list[Any]
) -> None:
    assert [*made(row, *inputs, requested=tuple(requested), **parameters)] == outputs


def test_a_convolution_has_a_result_for_each_place_where_the_kernel_fits() -> None:
    parameters: Any = {"stride": (2, 1), "padding": (0, 1), "dilation": (1, 2), "groups": 1}
    x, weight = f32(5, 3, 9, 9), f32(4, 3, 3, 3)
    # (9 - 3) // 2 + 1, and (9 + 2 - 2 * 2 - 1) // 1 + 1
    assert made(convolution_rows.CONV2D, x, weight, None, **parameters) == (f32(5, 4, 4, 7),)


def test_indices_may_be_of_either_integer_type() -> None:
    for indices in (i32(2), i64(2)):
        assert made(base.SELECT, f32(5, 4), indices, dim=0) == (f32(2, 4),)


def test_an_unsupported_operation_gives_the_reason() -> None:
    assert set(session.IMPOSSIBLE) == {session.ALL_REDUCE}
    assert all(session.IMPOSSIBLE.values())


@pytest.mark.parametrize(
    ("row", "inputs", "parameters"),
    [
        (base.SWAP_DIMS, [f32(2)], {"dim1": 0, "dim2": 1}),
        (numeric.ADD, [f32(2), f32(3)], {}),
        (floats.MATMUL, [f32(2, 3), f32(2, 3)], {}),
        (bools.NOT, [f32(2)], {}),
        (ints.BITWISE_AND, [f32(2), f32(2)], {}),
    ],
)
def test_tensors_that_do_not_fit_are_refused(row: Row, inputs: Any, parameters: Any) -> None:
    with pytest.raises(BurnRemoteError):
        made(row, *inputs, **parameters)
