"""Tests of all rules with random calls: they infer outputs or refuse, consistently."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from burn_remote_protocol.dtypes import BOOL, F16, F32, I32, I64, U8, DType, QuantScheme
from burn_remote_protocol.errors import LimitExceeded, UsageError
from burn_remote_protocol.operations import field_codecs, parameter_codecs
from burn_remote_protocol.operations.estimates import estimated
from burn_remote_protocol.operations.fields import Role
from burn_remote_protocol.operations.row import Call, Row
from burn_remote_protocol.operations.table import TABLE
from burn_remote_protocol.tensors import MAX_ELEMENTS, Slice, TensorSpec, checked_shape

SCHEMES = (
    QuantScheme("Q8S", "F32", "Native", None, "Symmetric"),
    QuantScheme("Q4F", "F32", ("PackedU32", 0), (2, 4), "Symmetric"),
)

# Few sizes and mostly one dtype, so that many of the calls are right.
sizes = st.sampled_from([0, 1, 1, 2, 2, 2, 3, 4, 2**40])
shapes = (
    st.lists(sizes, max_size=5)
    .map(tuple)
    .filter(lambda shape: math.prod(size or 1 for size in shape) <= MAX_ELEMENTS)
)
dtypes = st.sampled_from([F32, F32, F32, F16, I64, I32, U8, BOOL, DType.quantized(SCHEMES[1])])
specs = st.builds(TensorSpec, shapes, dtypes)
counts = st.sampled_from([0, 1, 1, 1, 2, 2, 3, 2**63, 2**64 - 1])
signed = st.sampled_from([-(2**63), -2, -1, 1, 2, 2**63 - 1])
numbers = st.floats() | st.integers(-(2**63), 2**64 - 1) | st.booleans()


VALUES: dict[type[field_codecs.FieldCodec], st.SearchStrategy[Any]] = {
    field_codecs.TensorCodec: specs,
    parameter_codecs.UnsignedCodec: counts,
    parameter_codecs.PaddingCodec: counts | st.tuples(counts, counts),
    parameter_codecs.PairCodec: st.tuples(counts, counts),
    parameter_codecs.PaddingModeCodec: st.sampled_from([("Reflect",), ("Edge",)])
    | st.tuples(st.just("Constant"), numbers),
    parameter_codecs.BoolCodec: st.booleans(),
    parameter_codecs.ScalarCodec: numbers,
    parameter_codecs.SliceCodec: st.builds(Slice, signed | st.just(0), st.none() | signed, signed),
    parameter_codecs.SchemeCodec: st.sampled_from(SCHEMES),
    parameter_codecs.StringCodec: st.text(max_size=3),
    parameter_codecs.DistributionCodec: st.just(("Default",)),
}


def argument(kind: field_codecs.FieldCodec) -> st.SearchStrategy[Any]:
    """Return values that a field of this kind may have, as a rule sees them."""
    match kind:
        case field_codecs.OptionalCodec(inner):
            return st.none() | argument(inner)
        case field_codecs.StructCodec(_, members):
            return st.tuples(*[argument(inner) for _, inner in members])
        case field_codecs.ListCodec(inner, least, most):
            return st.lists(argument(inner), min_size=least, max_size=min(most, 4)).map(tuple)
        case field_codecs.QuantizationParametersCodec(inner):
            return argument(inner)
        case parameter_codecs.NameCodec(names):
            return st.sampled_from(names)
    return VALUES[type(kind)]


@st.composite
def calls(draw: st.DrawFn, row: Row) -> Call:
    """Draw a call; more often than not its inputs have one shape and dtype."""
    inputs: list[Any] = []
    parameters: dict[str, Any] = {}
    alike = draw(st.none() | specs)
    for field in row.fields:
        if field.role is Role.INPUT:
            one_kind = alike is not None and isinstance(field.codec, field_codecs.TensorCodec)
            inputs.append(
                alike if one_kind and draw(st.booleans()) else draw(argument(field.codec))
            )
        elif isinstance(field.codec, field_codecs.StructCodec):
            parameters |= {name: draw(argument(kind)) for name, kind in field.codec.members}
        elif field.role is Role.PARAMETER:
            parameters[field.name] = draw(argument(field.codec))
    requested = tuple(draw(st.lists(specs, max_size=2)))
    return Call(tuple(inputs), parameters, requested)


@pytest.mark.parametrize("row", TABLE.values(), ids=str)
@given(data=st.data())
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
def test_a_rule_infers_outputs_or_refuses_consistently(row: Row, data: st.DataObject) -> None:
    call = data.draw(calls(row))

    try:
        outputs = row.rule(call)
    except (UsageError, LimitExceeded) as error:
        assert str(error)
        return

    assert all(checked_shape(spec.shape) == spec.shape for spec in outputs)
    # The outputs that a rule infers may be declared.
    assert row.rule(call._replace(requested=outputs)) == outputs
    cost, workspace = estimated(row.estimates, call._replace(requested=outputs))
    assert cost >= 0
    assert workspace >= 0
