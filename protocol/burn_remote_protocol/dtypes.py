"""The element types and their form on the wire.

A ``DType`` is a name, a category and an item size; no array library is involved. There is one
object per type (``F32 is DType.from_wire("F32")``), so types can be compared by identity.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntFlag, StrEnum
from typing import Any, Final, final

from burn_remote_protocol.errors import ProtocolViolation, Unsupported, shown
from burn_remote_protocol.frozen_map import FrozenMap

__all__ = [
    "ALL_DTYPES",
    "BF16",
    "BOOL",
    "BOOL_U8",
    "BOOL_U32",
    "C64",
    "C128",
    "F16",
    "F32",
    "F64",
    "FLEX32",
    "I8",
    "I16",
    "I32",
    "I64",
    "REAL_DTYPES",
    "U8",
    "U16",
    "U32",
    "U64",
    "Category",
    "DType",
    "DTypeUsage",
    "QuantScheme",
    "use_array_dtypes",
]


class Category(StrEnum):
    """The category of a dtype's elements; the IR has a family of operations for each.

    Burn has no complex numbers: only the native dialect knows ``COMPLEX``.
    """

    FLOAT = "float"
    COMPLEX = "complex"
    INT = "int"
    UINT = "uint"
    BOOL = "bool"
    QUANTIZED = "quantized"


_KINDS: Final = {
    Category.FLOAT: "f",
    Category.COMPLEX: "c",
    Category.INT: "i",
    Category.UINT: "u",
    Category.BOOL: "b",
    Category.QUANTIZED: "V",
}


class DTypeUsage(IntFlag):
    """What a device supports for a dtype; the bits are those of Burn 0.21's ``DTypeUsage``.

    ``STORAGE``: tensors can be held, moved and converted. ``ARITHMETIC``: operations can compute
    with them. Quantized dtypes have ``STORAGE`` only, because arithmetic on quantized tensors first
    dequantizes them. ``ACCELERATED``: special hardware computes with them.
    """

    STORAGE = 1
    ARITHMETIC = 2
    ACCELERATED = 4


@dataclass(frozen=True, slots=True)
class QuantScheme:
    """The form in which the values of a quantized tensor are stored.

    ``value`` is the type of the values (``"Q8S"`` …), ``param`` the dtype of the scales,
    ``store`` is ``"Native"``, or ``("PackedU32" | "PackedNative", dimension)``, ``level`` is
    ``None`` for one scale per tensor, otherwise the sizes of a block (at most five), and ``mode``
    is ``"Symmetric"`` or ``"Lookup"``.

    Burn 0.22 also has schemes without scales, whose ``param`` is ``None``. In others, each block
    has a scale of the dtype ``param``, and the whole tensor has one of the dtype ``tensor_param``.
    Burn 0.21 has only the mode ``"Symmetric"``.
    """

    value: str
    param: str | None
    store: str | tuple[str, int]
    level: tuple[int, ...] | None
    mode: str
    tensor_param: str | None = None

    VALUES = ("Q8F", "E5M2", "E4M3", "Q4F", "E2M1", "Q2F", "Q8S", "Q4S", "Q2S")
    PARAMS = ("F32", "F16", "BF16", "UE8M0", "UE4M3")
    MODES = ("Symmetric", "Lookup")

    @classmethod
    def from_wire(cls, wire: Any) -> QuantScheme:
        """Read a scheme from decoded MessagePack (maps as dictionaries or ``FrozenMap``).

        Accepts the forms of both releases of Burn: only the older one has the dtype of the scales
        as its second element. Raises ``ProtocolViolation`` for anything else.
        """
        try:
            elements = _array(wire, 5)
            if elements[0] not in cls.VALUES:
                raise ValueError
            if elements[1] in cls.PARAMS:
                return cls._from_wire_0_21(elements)
            return cls._from_wire_0_22(elements)
        except (TypeError, ValueError) as error:
            raise ProtocolViolation(f"not a quantization scheme: {shown(wire)}") from error

    @classmethod
    def _from_wire_0_21(cls, wire: Any) -> QuantScheme:
        value, param, store, level, mode = wire
        if mode != "Symmetric":
            raise ValueError
        block = None
        if level != "Tensor":
            name, size = _variant(level)
            if name != "Block":
                raise ValueError
            block = _block_from_wire(size)
        return cls(value, param, _store_from_wire(store), block, mode)

    @classmethod
    def _from_wire_0_22(cls, wire: Any) -> QuantScheme:
        value, store, mode, whole, block = wire
        if mode not in cls.MODES or (whole is not None and whole not in cls.PARAMS):
            raise ValueError
        stored = _store_from_wire(store)
        if block is None:
            return cls(value, whole, stored, None, mode)
        size, param = _array(block, 2)
        if param not in cls.PARAMS:
            raise ValueError
        return cls(value, param, stored, _block_from_wire(size), mode, whole)

    @property
    def is_in_0_21(self) -> bool:
        """Whether Burn 0.21 has the scheme."""
        return self.param is not None and self.tensor_param is None and self.mode == "Symmetric"

    def to_wire(self) -> list[Any]:
        """Write the scheme as Burn 0.21 does: five fields; ones pad the block's sizes to five.

        Raises ``Unsupported`` for a scheme that only Burn 0.22 has.
        """
        if not self.is_in_0_21:
            raise Unsupported(f"Burn 0.21 does not have the quantization scheme {self}")
        if self.level is None:
            return [self.value, self.param, _store_to_wire(self.store), "Tensor", self.mode]
        block = {"Block": _block_to_wire(self.level)}
        return [self.value, self.param, _store_to_wire(self.store), block, self.mode]

    def to_wire_0_22(self) -> list[Any]:
        """Write the scheme as Burn 0.22 does: also five fields, but in another order and form."""
        store = _store_to_wire(self.store)
        if self.level is None:
            return [self.value, store, self.mode, self.param, None]
        block = [_block_to_wire(self.level), self.param]
        return [self.value, store, self.mode, self.tensor_param, block]


def _store_from_wire(wire: Any) -> str | tuple[str, int]:
    if wire == "Native":
        return "Native"
    name, dimension = _variant(wire)
    if name not in ("PackedU32", "PackedNative") or not _is_count(dimension):
        raise ValueError
    return name, dimension


def _store_to_wire(store: str | tuple[str, int]) -> Any:
    return store if isinstance(store, str) else {store[0]: store[1]}


def _block_from_wire(wire: Any) -> tuple[int, ...]:
    sizes, count = _array(wire, 2)
    if any(type(n) is not int or not 1 <= n <= 255 for n in (*_array(sizes, 5), count)):
        raise ValueError
    if count not in range(1, 6):
        raise ValueError
    return tuple(sizes[:count])


def _block_to_wire(block: tuple[int, ...]) -> list[Any]:
    return [[*block, 1, 1, 1, 1, 1][:5], len(block)]


@final
class DType:
    """An element type: its wire name, its category and its size in bytes.

    ``itemsize`` is 0 for quantized types, whose size depends on the scheme. Attributes ``store``
    (Burn's storage of a bool: ``"Native"``, ``"U8"`` or ``"U32"``) and ``scheme`` are ``None``
    where they do not apply. ``wire`` is the form of the native dialect.
    """

    __slots__ = ("__weakref__", "_hash", "category", "itemsize", "name", "scheme", "store", "wire")

    def __init__(
        self,
        name: str,
        category: Category,
        itemsize: int,
        *,
        store: str | None = None,
        scheme: QuantScheme | None = None,
    ) -> None:
        self.name: Final = name
        self.category: Final = category
        self.itemsize: Final = itemsize
        self.store: Final = store
        self.scheme: Final = scheme
        self.wire: Final[Any] = (
            {"Bool": store} if store else {"QFloat": _native_scheme(scheme)} if scheme else name
        )
        self._hash: Final = hash(str(self))

    @staticmethod
    def from_wire(wire: Any) -> DType:
        """Return the dtype that a decoded MessagePack value names.

        Raises ``ProtocolViolation`` for anything that is not a dtype.
        """
        try:
            if type(wire) is str:
                return _BY_NAME[wire]
            name, body = _variant(wire)
            if name == "Bool":
                return _BY_STORE[body]
            if name == "QFloat":
                return DType.quantized(QuantScheme.from_wire(body))
        except (KeyError, TypeError, ValueError):
            pass
        known = ", ".join(_BY_NAME)
        raise ProtocolViolation(f"unknown dtype {shown(wire)}; known are {known}, Bool and QFloat")

    @staticmethod
    def quantized(scheme: QuantScheme) -> DType:
        """Return the one dtype object for tensors quantized by ``scheme``."""
        found = _QUANTIZED.get(scheme)
        if found is None:
            found = DType(f"QFloat({scheme.value})", Category.QUANTIZED, 0, scheme=scheme)
            found = _QUANTIZED.setdefault(scheme, found)
        return found

    @property
    def is_floating(self) -> bool:
        """Whether elements are floating-point numbers (not quantized ones)."""
        return self.category is Category.FLOAT

    @property
    def kind(self) -> str:
        """NumPy's letter for the category: ``"f"``, ``"c"``, ``"i"``, ``"u"`` or ``"b"``.

        That of quantized dtypes is ``"V"``, NumPy's letter for elements that only have a size.
        """
        return _KINDS[self.category]

    @property
    def is_complex(self) -> bool:
        """Whether elements are complex numbers."""
        return self.category is Category.COMPLEX

    @property
    def is_integer(self) -> bool:
        """Whether elements are signed or unsigned integers."""
        return self.category is Category.INT or self.category is Category.UINT

    @property
    def is_bool(self) -> bool:
        """Whether elements are truth values, however they are stored."""
        return self.category is Category.BOOL

    def __hash__(self) -> int:
        """Return the hash of the name. A NumPy dtype that equals this one has another hash."""
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Whether ``other`` is this dtype, its name, or NumPy's dtype with that name."""
        if self is other or isinstance(other, DType):
            return self is other
        name = getattr(other, "name", None) or getattr(other, "__name__", other)
        return str(self) == name

    def __repr__(self) -> str:
        return f"burn_remote.{self}"

    def __str__(self) -> str:
        return _PYTHON_NAMES.get(self.name, self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return (DType.from_wire, (self.wire,))

    @property
    def __numpy_dtype__(self) -> Any:
        """NumPy's dtype of such elements, for ``numpy.dtype(x.dtype)``.

        Raises ``AttributeError`` unless ``use_array_dtypes`` was called: this package has no
        arrays.
        """
        if not _array_dtypes:
            raise AttributeError("no array library is in use", name="__numpy_dtype__")
        return _array_dtypes[0](self)

    # The name of the same protocol before NumPy 2.4.
    dtype = __numpy_dtype__


_array_dtypes: Final[list[Callable[[DType], Any]]] = []


def use_array_dtypes(dtype_of: Callable[[DType], Any]) -> None:
    """Register the function that returns NumPy's dtype: ``burn_remote`` registers its own."""
    _array_dtypes[:] = [dtype_of]


def _native_scheme(scheme: QuantScheme) -> list[Any]:
    # Clients and servers from before Burn 0.22 read only the older form.
    return scheme.to_wire() if scheme.is_in_0_21 else scheme.to_wire_0_22()


def _array(wire: Any, length: int) -> Any:
    # Maps, text and byte buffers can be unpacked too, so check the type first.
    if type(wire) not in (tuple, list) or len(wire) != length:
        raise ValueError
    return wire


def _variant(wire: Any) -> Any:
    if type(wire) is not dict and type(wire) is not FrozenMap:
        raise ValueError
    ((name, body),) = wire.items() if type(wire) is dict else wire
    return name, body


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**64


_PYTHON_NAMES: Final = {
    "F64": "float64", "F32": "float32", "Flex32": "flex32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "C128": "complex128", "C64": "complex64",
    "Bool": "bool", "Bool(U8)": "bool_u8", "Bool(U32)": "bool_u32",
}  # fmt: skip

F64 = DType("F64", Category.FLOAT, 8)
F32 = DType("F32", Category.FLOAT, 4)
FLEX32 = DType("Flex32", Category.FLOAT, 4)
F16 = DType("F16", Category.FLOAT, 2)
BF16 = DType("BF16", Category.FLOAT, 2)
C128 = DType("C128", Category.COMPLEX, 16)
C64 = DType("C64", Category.COMPLEX, 8)
I64 = DType("I64", Category.INT, 8)
I32 = DType("I32", Category.INT, 4)
I16 = DType("I16", Category.INT, 2)
I8 = DType("I8", Category.INT, 1)
U64 = DType("U64", Category.UINT, 8)
U32 = DType("U32", Category.UINT, 4)
U16 = DType("U16", Category.UINT, 2)
U8 = DType("U8", Category.UINT, 1)
BOOL = DType("Bool", Category.BOOL, 1, store="Native")
BOOL_U8 = DType("Bool(U8)", Category.BOOL, 1, store="U8")
BOOL_U32 = DType("Bool(U32)", Category.BOOL, 4, store="U32")

ALL_DTYPES: Final = (
    F64, F32, FLEX32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, BOOL, BOOL_U8, BOOL_U32,
    C128, C64,
)  # fmt: skip

# The dtype of the real and the imaginary part of a complex dtype's elements.
REAL_DTYPES: Final = {C128: F64, C64: F32}

_BY_NAME: Final = {dtype.name: dtype for dtype in ALL_DTYPES if dtype.store is None}
_BY_STORE: Final = {dtype.store: dtype for dtype in ALL_DTYPES if dtype.store is not None}
_QUANTIZED: weakref.WeakValueDictionary[QuantScheme, DType] = weakref.WeakValueDictionary()
