"""Random calls of the rows of the operation table, for their rules."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from hypothesis import strategies as st

from burn_remote_protocol.dtypes import BOOL, C64, F16, F32, I32, I64, U8, DType, QuantScheme
from burn_remote_protocol.errors import LimitExceeded, Unsupported, UsageError
from burn_remote_protocol.operations import field_codecs, parameter_codecs
from burn_remote_protocol.operations.estimates import estimated
from burn_remote_protocol.operations.fields import Role
from burn_remote_protocol.operations.row import Call, Row
from burn_remote_protocol.tensors import MAX_ELEMENTS, Slice, TensorSpec, checked_shape

__all__ = ["assert_consistent", "calls", "changed_calls", "resized_calls"]

SCHEMES: Final = (
    QuantScheme("Q8S", "F32", "Native", None, "Symmetric"),
    QuantScheme("Q4F", "F32", ("PackedU32", 0), (2, 4), "Symmetric"),
)

# Few sizes and mostly one dtype, so that the rules accept many of the calls.
sizes = st.sampled_from([0, 1, 1, 2, 2, 2, 3, 4, 2**40])
shapes = (
    st.lists(sizes, max_size=5)
    .map(tuple)
    .filter(lambda shape: math.prod(size or 1 for size in shape) <= MAX_ELEMENTS)
)
dtypes = st.sampled_from([F32, F32, F32, F16, I64, I32, U8, BOOL, C64, DType.quantized(SCHEMES[1])])
specs = st.builds(TensorSpec, shapes, dtypes)
counts = st.sampled_from([0, 1, 1, 1, 2, 2, 3, 2**63, 2**64 - 1])
signed = st.sampled_from([-(2**63), -2, -1, 1, 2, 2**63 - 1])
numbers = st.floats() | st.integers(-(2**63), 2**64 - 1) | st.booleans()


VALUES: dict[type[field_codecs.FieldCodec], st.SearchStrategy[Any]] = {
    field_codecs.TensorCodec: specs,
    parameter_codecs.UnsignedCodec: counts,
    parameter_codecs.PaddingCodec: counts
    | st.tuples(counts, counts).filter(lambda ends: ends[0] != ends[1]),
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


@st.composite
def changed_specs(draw: st.DrawFn, spec: TensorSpec) -> TensorSpec:
    """Draw a spec that differs in one dimension, in the number of dimensions or in the dtype."""
    shape = list(spec.shape)
    match draw(st.sampled_from(["size", "more", "fewer", "dtype"])):
        case "size" if shape:
            shape[draw(st.integers(0, len(shape) - 1))] = draw(st.integers(0, 4))
        case "more":
            shape.insert(draw(st.integers(0, len(shape))), draw(st.integers(1, 2)))
        case "fewer" if shape:
            del shape[draw(st.integers(0, len(shape) - 1))]
        case _:
            return spec._replace(dtype=draw(dtypes))
    return spec._replace(shape=tuple(shape))


def sizes_in(value: Any) -> set[int]:
    """Return the sizes of the axes of an input or output."""
    if isinstance(value, TensorSpec):
        return {*value.shape}
    return set().union(*map(sizes_in, value)) if isinstance(value, tuple) else set()


def resized(value: Any, old: int, new: int) -> Any:
    """Return an input or output with another size wherever it has a given one."""
    if isinstance(value, TensorSpec):
        shape = tuple([new if size == old else size for size in value.shape])
        return value._replace(shape=shape)
    return tuple([resized(item, old, new) for item in value]) if isinstance(value, tuple) else value


def resized_calls(call: Call) -> Iterator[Call]:
    """Yield calls in which one size is replaced everywhere, so that the rule accepts many."""
    for old in sorted(sizes_in((call.inputs, call.requested))):
        for new in (0, 1, 5):
            yield call._replace(
                inputs=resized(call.inputs, old, new), requested=resized(call.requested, old, new)
            )


@st.composite
def changed_calls(draw: st.DrawFn, row: Row, call: Call) -> Call:
    """Draw a call that differs from a given one in one input, parameter or output."""
    codecs: dict[str, field_codecs.FieldCodec] = {}
    for field in row.fields:
        if isinstance(field.codec, field_codecs.StructCodec):
            codecs |= dict(field.codec.members)
        elif field.role is Role.PARAMETER:
            codecs[field.name] = field.codec
    inputs, requested = list(call.inputs), list(call.requested)
    kinds = [field.codec for field in row.fields if field.role is Role.INPUT]
    places: list[tuple[str, Any]] = [("input", place) for place in range(len(inputs))]
    places += [("parameter", name) for name in codecs]
    places += [("output", place) for place in range(len(requested))]
    match draw(st.sampled_from(places)):
        case "input", place:
            is_tensor = isinstance(inputs[place], TensorSpec)
            inputs[place] = draw(
                changed_specs(inputs[place]) if is_tensor else argument(kinds[place])
            )
        case "output", place:
            requested[place] = draw(changed_specs(requested[place]))
        case _, name:
            parameters = {**call.parameters, name: draw(argument(codecs[name]))}
            return call._replace(parameters=parameters)
    return call._replace(inputs=tuple(inputs), requested=tuple(requested))


def assert_consistent(row: Row, call: Call) -> bool:
    """Check that a rule refuses a call, or infers outputs that the call may declare.

    Return whether it infers them.
    """
    try:
        outputs = row.rule(call)
    except (UsageError, Unsupported, LimitExceeded) as error:
        assert str(error)
        return False
    assert all(checked_shape(spec.shape) == spec.shape for spec in outputs)
    declared = call._replace(requested=outputs)
    assert row.rule(declared) == outputs
    cost, workspace = estimated(row.estimates, declared)
    assert cost >= 0
    assert workspace >= 0
    return True
