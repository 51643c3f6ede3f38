"""The fields of operations, and functions that build them for the rows of the table.

A row reads like Burn's schema:
``(tensor_in("tensor"), usize("dim"), tensor_in("indices"), tensor_out("out"))``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from burn_remote_protocol.operations.field_codecs import (
    FieldCodec,
    ListCodec,
    OptionalCodec,
    QuantizationParametersCodec,
    StructCodec,
    TensorCodec,
)
from burn_remote_protocol.operations.parameter_codecs import (
    BoolCodec,
    DistributionCodec,
    NameCodec,
    PaddingCodec,
    PaddingModeCodec,
    PairCodec,
    ScalarCodec,
    SchemeCodec,
    SliceCodec,
    StringCodec,
    UnsignedCodec,
)
from burn_remote_protocol.operations.vocabularies import EVERYWHERE, Lifetime, Vocabulary
from burn_remote_protocol.tensors import MAX_RANK, TensorStatus

__all__ = [
    "Field",
    "Role",
    "boolean",
    "devices",
    "distribution",
    "name_of",
    "optional_scalar",
    "optional_tensor_in",
    "optional_tensor_out",
    "optional_usize",
    "options",
    "padding_mode",
    "padding_pairs",
    "paddings",
    "quantization_parameters",
    "quantization_scheme",
    "scalar",
    "scalars",
    "size_list",
    "slices",
    "string",
    "tensor_in",
    "tensor_out",
    "tensors_in",
    "tensors_out",
    "usize",
    "usize_array",
    "usize_list",
]

# Enough for the concatenation of a long sequence with one tensor per step. Messages from peers have
# shorter lists: at most ``bounded_unpacking.MAX_LIST_LENGTH``.
MAX_TENSORS_IN_LIST: Final = 65_536

# Enough for qualified Rust paths. Names are stored in the server's caches and logs.
MAX_NAME_CHARACTERS: Final = 256


# Enough for the settings of one operation. Each becomes a Python object.
MAX_SCALARS_IN_LIST: Final = 1024

# More devices than one process has.
MAX_DEVICES_IN_LIST: Final = 1024

_NO_NAMES: Final[Mapping[str, Vocabulary]] = MappingProxyType({})


class Role(Enum):
    """The role of a field in its operation."""

    INPUT = "input"
    OUTPUT = "output"
    PARAMETER = "parameter"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a row, under its name in Burn's schema.

    ``lifetime`` says which releases of Burn have the field, ``absent`` is its argument where a
    message does not have it.
    """

    name: str
    role: Role
    codec: FieldCodec
    lifetime: Lifetime = EVERYWHERE
    absent: Any = None

    def added(self, since: Vocabulary, absent: Any = None) -> Field:
        """Return this field as one that a release added, with its argument in older messages."""
        return replace(self, lifetime=Lifetime(since=since), absent=absent)


_USIZE: Final = UnsignedCodec()
_SCALAR: Final = ScalarCodec()
_INPUT: Final = TensorCodec(frozenset({TensorStatus.READ_ONLY, TensorStatus.READ_WRITE}))
_OUTPUT: Final = TensorCodec(frozenset({TensorStatus.NOT_INIT}))


def tensor_in(name: str) -> Field:
    """A tensor that the operation reads."""
    return Field(name, Role.INPUT, _INPUT)


def optional_tensor_in(name: str) -> Field:
    """A tensor that the operation reads when it is given."""
    return Field(name, Role.INPUT, OptionalCodec(_INPUT))


def tensors_in(name: str) -> Field:
    """A list of tensors that the operation reads."""
    return Field(name, Role.INPUT, ListCodec(_INPUT, 0, MAX_TENSORS_IN_LIST, "tensors"))


def quantization_parameters(name: str) -> Field:
    """The scales of a quantized tensor, an input; since Burn 0.22 also a scale of the scales."""
    return Field(name, Role.INPUT, QuantizationParametersCodec(_INPUT))


def tensor_out(name: str) -> Field:
    """A tensor that the operation makes."""
    return Field(name, Role.OUTPUT, _OUTPUT)


def optional_tensor_out(name: str) -> Field:
    """A tensor that the operation makes only if the corresponding optional input is present."""
    return Field(name, Role.OUTPUT, OptionalCodec(_OUTPUT))


def tensors_out(name: str) -> Field:
    """A list of tensors that the operation makes."""
    return Field(name, Role.OUTPUT, ListCodec(_OUTPUT, 0, MAX_TENSORS_IN_LIST, "tensors"))


def usize(name: str) -> Field:
    """An unsigned integer."""
    return Field(name, Role.PARAMETER, _USIZE)


def optional_usize(name: str) -> Field:
    """An unsigned integer or ``None``."""
    return Field(name, Role.PARAMETER, OptionalCodec(_USIZE))


def usize_array(name: str, length: int) -> Field:
    """A tuple of unsigned integers, one per spatial dimension; also a tuple for one dimension."""
    return Field(name, Role.PARAMETER, ListCodec(_USIZE, length, length, "sizes"))


def paddings(name: str, length: int) -> Field:
    """The padding of each spatial dimension: an integer, or ``(before, after)`` if they differ."""
    return Field(name, Role.PARAMETER, ListCodec(PaddingCodec(), length, length, "paddings"))


def usize_list(name: str) -> Field:
    """A list of axes."""
    return Field(name, Role.PARAMETER, ListCodec(_USIZE, 0, MAX_RANK, "axes"))


def padding_pairs(name: str) -> Field:
    """A list of pairs of sizes: the elements to add before and after those of each axis."""
    return Field(name, Role.PARAMETER, ListCodec(PairCodec(), 0, MAX_RANK, "pairs of sizes"))


def padding_mode(name: str) -> Field:
    """How new elements are filled: ``("Constant", number)``, ``("Reflect",)`` or ``("Edge",)``.

    The number is a ``Scalar`` in the signature.
    """
    return Field(name, Role.PARAMETER, PaddingModeCodec())


def size_list(name: str) -> Field:
    """A list of sizes of axes."""
    return Field(name, Role.PARAMETER, ListCodec(_USIZE, 0, MAX_RANK, "sizes"))


def slices(name: str) -> Field:
    """A list of slices, for the leading dimensions."""
    return Field(name, Role.PARAMETER, ListCodec(SliceCodec(), 0, MAX_RANK, "slices"))


def boolean(name: str) -> Field:
    """True or false."""
    return Field(name, Role.PARAMETER, BoolCodec())


def scalar(name: str) -> Field:
    """A number: a ``Scalar`` in the signature, a Python number for rules and kernels."""
    return Field(name, Role.PARAMETER, _SCALAR)


def scalars(name: str) -> Field:
    """A list of numbers."""
    return Field(name, Role.PARAMETER, ListCodec(_SCALAR, 0, MAX_SCALARS_IN_LIST, "scalars"))


def devices(name: str) -> Field:
    """A list of devices: tuples of a type and an index, as Burn numbers them."""
    device = StructCodec("a device", (("type_id", _USIZE), ("index_id", _USIZE)))
    return Field(name, Role.PARAMETER, ListCodec(device, 0, MAX_DEVICES_IN_LIST, "devices"))


def optional_scalar(name: str) -> Field:
    """A number or ``None``."""
    return Field(name, Role.PARAMETER, OptionalCodec(_SCALAR))


def string(name: str) -> Field:
    """A name of bounded length."""
    return Field(name, Role.PARAMETER, StringCodec(MAX_NAME_CHARACTERS))


def name_of(name: str, *names: str, since: Mapping[str, Vocabulary] = _NO_NAMES) -> Field:
    """One of the given names; ``since`` says which release added a name, if not the first."""
    return Field(name, Role.PARAMETER, NameCodec(names, tuple(since.items())))


def distribution(name: str) -> Field:
    """A distribution of random numbers: a tuple of its name and parameters."""
    return Field(name, Role.PARAMETER, DistributionCodec())


def quantization_scheme(name: str) -> Field:
    """A ``QuantScheme``."""
    return Field(name, Role.PARAMETER, SchemeCodec())


def options(name: str, *members: Field) -> Field:
    """A struct of parameters, each of which is a parameter of the call under its own name."""
    kinds = tuple((member.name, member.codec) for member in members)
    return Field(name, Role.PARAMETER, StructCodec(f"{name} of an operation", kinds))
