"""Each row of the operation table takes the dtypes of its family, and refuses all others.

The client and the server apply the same rules: what a client may issue is what a server accepts.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import pytest

from burn_remote_protocol.dtypes import BOOL, C64, F16, F32, I64, U8, Category, DType
from burn_remote_protocol.errors import DTypeMismatch
from burn_remote_protocol.operations.row import Call, Signature
from burn_remote_protocol.operations.table import TABLE
from burn_remote_protocol.tensors import TensorSpec
from support.calls import CALLS, calling_on
from support.runners import RecordingDevice

Key = tuple[str, str]

FLOATS: Final = frozenset({Category.FLOAT})
INTEGERS: Final = frozenset({Category.INT, Category.UINT})
BOOLS: Final = frozenset({Category.BOOL})
COMPLEX: Final = frozenset({Category.COMPLEX})

# The categories that the first tensor of a family's rows may have.
FAMILIES: Final = {
    "Activation": FLOATS,
    "Base": FLOATS | INTEGERS | BOOLS | COMPLEX,
    "Bool": BOOLS,
    "Complex": COMPLEX,
    "Elementwise": FLOATS,
    "Float": FLOATS,
    "Fourier": COMPLEX,
    "Int": INTEGERS,
    "LinearAlgebra": FLOATS | COMPLEX,
    "Module": FLOATS,
    "Numeric": FLOATS | INTEGERS,
    "Search": FLOATS | INTEGERS | BOOLS,
}

# Rows of these families that also take complex numbers, because the function has a meaning there.
ALSO_COMPLEX: Final = {
    "Float": frozenset(
        """
        ArcCos ArcCosh ArcSin ArcSinh ArcTan ArcTanh Cos Cosh Exp IsInf IsNan Log Log1p Matmul Powf
        PowfScalar Recip Sin Sinh Sqrt Tan Tanh
        """.split()  # noqa: SIM905 - easier to read than a list
    ),
    "Numeric": frozenset(
        """
        Add AddScalar CumProd CumSum Div DivScalar Mean MeanDim Mul MulScalar Pad Powi PowiScalar
        Prod ProdDim Sub SubScalar Sum SumDim SumDims
        """.split()  # noqa: SIM905 - as above
    ),
}

# Rows whose results have a dtype that depends on the input's in another way; other tests have them.
OTHERS: Final = {
    ("Base", "Cast"),
    ("Complex", "FromParts"),
    ("Complex", "IntoComplex"),
    ("Float", "Dequantize"),
    ("Fourier", "RealFft"),
    ("LinearAlgebra", "Eig"),
    ("LinearAlgebra", "Eigvals"),
}

# One dtype of each category, and a second floating-point one.
DTYPES: Final = (F32, F16, I64, U8, BOOL, C64)


@functools.cache
def signature_of(key: Key) -> Signature:
    """Return the signature of a valid call of a row."""
    device = RecordingDevice()
    with calling_on(device):
        CALLS[key]()
    signatures = [operation.signature for operation in device.runner.operations]
    return next(one for one in signatures if one.row is TABLE[key])


def dtypes_of(call: Call) -> list[DType | None]:
    """Return the dtype of each input; the members of a list have one."""
    return [
        None if one is None else one.dtype if isinstance(one, TensorSpec) else one[0].dtype
        for one in call.inputs
    ]


def with_dtype(call: Call, places: list[int], dtype: DType) -> Call:
    """Return a call whose inputs at these places have another dtype."""

    def changed(one: Any) -> Any:
        if isinstance(one, TensorSpec):
            return TensorSpec(one.shape, dtype)
        return tuple(TensorSpec(member.shape, dtype) for member in one)

    inputs = [changed(one) if place in places else one for place, one in enumerate(call.inputs)]
    return Call(tuple(inputs), call.parameters, call.requested)


WITH_INPUTS: Final = [key for key in CALLS if signature_of(key).input_uses]


def test_every_family_with_inputs_is_known() -> None:
    assert {family for family, _ in WITH_INPUTS} == {*FAMILIES}
    assert {*OTHERS} < {*WITH_INPUTS}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("key", [key for key in WITH_INPUTS if key not in OTHERS], ids=".".join)
def test_a_row_takes_the_dtypes_of_its_family(key: Key, dtype: DType) -> None:
    family, name = key
    call = signature_of(key).call
    dtypes = dtypes_of(call)
    alike = [place for place, one in enumerate(dtypes) if one is dtypes[0]]
    changed = with_dtype(call, alike, dtype)
    is_taken = dtype.category in FAMILIES[family] or (
        dtype.is_complex and name in ALSO_COMPLEX.get(family, ())
    )
    if is_taken:
        TABLE[key].rule(changed)
    else:
        with pytest.raises(DTypeMismatch):
            TABLE[key].rule(changed)


@pytest.mark.parametrize("key", WITH_INPUTS, ids=".".join)
def test_tensors_that_are_combined_have_one_dtype(key: Key) -> None:
    call = signature_of(key).call
    dtypes = dtypes_of(call)
    for place, own in enumerate(dtypes):
        if dtypes.count(own) == 1 or own is None or own is I64:
            continue
        for dtype in DTYPES:
            # The scales of a quantization are converted.
            if dtype is own or (key == ("Float", "Quantize") and dtype.is_floating):
                continue
            with pytest.raises(DTypeMismatch):
                TABLE[key].rule(with_dtype(call, [place], dtype))


@pytest.mark.parametrize("key", WITH_INPUTS, ids=".".join)
def test_indices_are_integers_and_masks_are_bools(key: Key) -> None:
    call = signature_of(key).call
    dtypes = dtypes_of(call)
    for place, own in enumerate(dtypes):
        if own is dtypes[0] or own is None:
            continue
        assert own in (I64, BOOL)
        for dtype in DTYPES:
            changed = with_dtype(call, [place], dtype)
            if dtype.category in (BOOLS if own is BOOL else INTEGERS):
                TABLE[key].rule(changed)
            else:
                with pytest.raises(DTypeMismatch):
                    TABLE[key].rule(changed)
