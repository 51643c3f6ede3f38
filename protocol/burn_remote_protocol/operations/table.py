"""The table of operations, by family and name, and the table of their kinds on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from burn_remote_protocol.errors import DTypeMismatch
from burn_remote_protocol.operations.families import (
    activations,
    base,
    bools,
    complex_rows,
    convolution_rows,
    elementwise_rows,
    floats,
    fourier_rows,
    ints,
    layers,
    matrix_rows,
    numeric,
    pooling_rows,
    sampling,
    search_rows,
    session,
)
from burn_remote_protocol.operations.row import Row, Signature
from burn_remote_protocol.operations.shape_rules.checks import (
    ANY,
    BOOLS,
    COMPLEX,
    FLOATS,
    INTEGERS,
    QUANTIZED,
    Categories,
)
from burn_remote_protocol.operations.vocabularies import (
    EVERYWHERE,
    EXTENSION,
    SINCE_BURN_0_22,
    Lifetime,
)
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["KINDS", "TABLE", "WireKind", "kind_of", "sign"]

ROWS: Final = (
    *base.ROWS,
    *numeric.ROWS,
    *floats.ROWS,
    *ints.ROWS,
    *bools.ROWS,
    *activations.ROWS,
    *layers.ROWS,
    *convolution_rows.ROWS,
    *pooling_rows.ROWS,
    *sampling.ROWS,
    *session.ROWS,
    *elementwise_rows.ROWS,
    *matrix_rows.ROWS,
    *search_rows.ROWS,
    *complex_rows.ROWS,
    *fourier_rows.ROWS,
)

TABLE: Final[Mapping[tuple[str, str], Row]] = MappingProxyType(
    {(row.family, row.name): row for row in ROWS}
)


class WireKind(NamedTuple):
    """An outer name on the wire.

    ``family`` is the family of its operations, ``carries_dtype`` says whether a dtype precedes the
    variant, and ``categories`` are those that an operation's first tensor may have. ``lifetime``
    says which releases of Burn have the kind. Unless ``names`` is ``None``, the kind has only these
    operations of its family.
    """

    family: str
    carries_dtype: bool
    categories: Categories
    lifetime: Lifetime = EVERYWHERE
    names: frozenset[str] | None = None

    def has(self, row: Row) -> bool:
        """Return whether a row is one of the kind's operations."""
        return row.family == self.family and (self.names is None or row.name in self.names)


# Burn's operations that complex numbers have too, besides those that only move elements.
_COMPLEX_NUMERIC: Final = frozenset(
    {
        *("Add", "AddScalar", "Sub", "SubScalar", "Mul", "MulScalar", "Div", "DivScalar", "Full"),
        *("Mean", "MeanDim", "Sum", "SumDim", "Prod", "ProdDim", "CumSum", "CumProd"),
        *("Powi", "PowiScalar", "SumDims", "Pad"),
    }
)
_COMPLEX_FLOAT: Final = frozenset(
    {
        *("Exp", "Log", "Log1p", "Sqrt", "Recip", "Powf", "PowfScalar", "Matmul"),
        *("Cos", "Cosh", "Sin", "Sinh", "Tan", "Tanh", "IsNan", "IsInf"),
        *("ArcCos", "ArcCosh", "ArcSin", "ArcSinh", "ArcTan", "ArcTanh"),
    }
)

# The first servers with ``LinearAlgebra`` took complex matrices in Eig and Eigvals only. The other
# rows have a kind of their own for complex matrices, so that these servers do not list them.
_COMPLEX_MATRICES: Final = frozenset(
    row.name for row in matrix_rows.ROWS if row.name not in ("Eig", "Eigvals")
)

KINDS: Final[Mapping[str, WireKind]] = MappingProxyType(
    {
        "BaseFloat": WireKind("Base", False, FLOATS | QUANTIZED),
        "BaseInt": WireKind("Base", False, INTEGERS),
        "BaseBool": WireKind("Base", False, BOOLS),
        "NumericFloat": WireKind("Numeric", True, FLOATS | QUANTIZED),
        "NumericInt": WireKind("Numeric", True, INTEGERS),
        "Bool": WireKind("Bool", False, BOOLS),
        "Int": WireKind("Int", False, INTEGERS),
        "Float": WireKind("Float", True, FLOATS | QUANTIZED),
        "Module": WireKind("Module", False, ANY),
        "Init": WireKind("Init", False, ANY),
        "Custom": WireKind("Custom", False, ANY),
        "Drop": WireKind("Drop", False, ANY),
        "Distributed": WireKind("Distributed", False, ANY),
        # Operations of Burn's families on complex numbers. Burn has no complex numbers.
        "BaseComplex": WireKind("Base", False, COMPLEX, EXTENSION),
        "NumericComplex": WireKind("Numeric", False, COMPLEX, EXTENSION, _COMPLEX_NUMERIC),
        "FloatComplex": WireKind("Float", False, COMPLEX, EXTENSION, _COMPLEX_FLOAT),
        # The kinds of extension rows, one for each family.
        "Complex": WireKind("Complex", False, ANY, EXTENSION),
        "Fourier": WireKind("Fourier", False, ANY, EXTENSION),
        "Elementwise": WireKind("Elementwise", False, ANY, EXTENSION),
        "LinearAlgebraComplex": WireKind(
            "LinearAlgebra", False, COMPLEX, EXTENSION, _COMPLEX_MATRICES
        ),
        "LinearAlgebra": WireKind("LinearAlgebra", False, FLOATS | COMPLEX, EXTENSION),
        "Activation": WireKind("Activation", False, FLOATS, SINCE_BURN_0_22),
        "Search": WireKind("Search", False, ANY, EXTENSION),
    }
)


def kind_of(row: Row, first: TensorSpec) -> str:
    """Return the wire kind of an operation; ``first`` is its first input, or output if it has none.

    Raises ``DTypeMismatch`` when the operation does not exist for tensors of that dtype.
    """
    for name, kind in KINDS.items():
        if kind.has(row) and first.dtype.category in kind.categories:
            return name
    raise DTypeMismatch(f"{row} does not exist for {first}")


def sign(row: Row, *arguments: Any) -> Signature:
    """Make the signature of an operation from one argument per field of its row.

    A tensor is a ``TensorUse``, a list of tensors a tuple of them; a scalar is a ``Scalar``; a
    struct of options is a tuple of its members. Kind and dtype follow from the first tensor. The
    last fields may be left out if Burn 0.21 does not have them.
    """
    first = _first_tensor(arguments)
    arguments += tuple(field.absent for field in row.fields[len(arguments) :])
    kind = kind_of(row, first)
    return Signature(kind, row, first.dtype if KINDS[kind].carries_dtype else None, arguments)


def _first_tensor(arguments: tuple[Any, ...]) -> TensorSpec:
    # Burn's rows have no output before an input, so the first tensor in wire order is an input.
    for argument in arguments:
        for use in argument if type(argument) is tuple else (argument,):
            if type(use) is TensorUse:
                return use.spec
    raise DTypeMismatch("an operation needs a tensor")
