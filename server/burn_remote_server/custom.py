"""How does an operator add operations of their own to a server?

A module of the operator's says what they are; a server that is started with
``--custom-operations`` and its name runs them::

    from burn_remote_server.custom import custom_operation

    @custom_operation("swish", inputs={"x": "float32 float64"}, shapes=lambda x: x)
    def swish(xp, x):
        return x / (1 + xp.exp(-x))
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from burn_remote_protocol.dtypes import ALL_DTYPES, Category, DType
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.tensors import TensorSpec

__all__ = [
    "NO_OPERATIONS",
    "CustomOperation",
    "CustomOperations",
    "ShapeRule",
    "custom_operation",
    "load_operations",
]

# Returns the outputs for the specs of the inputs. Raises ShapeMismatch or DTypeMismatch.
ShapeRule = Callable[..., TensorSpec | Sequence[TensorSpec]]

# Longer: a failure that repeats a name gets hard to read. Shorter: names with a package's in front
# no longer fit.
MAX_NAME_CHARACTERS: Final = 100

# What may be said of an input's dtype: a category, or a dtype by its name.
ANY: Final = "any"
_DTYPES: Final[Mapping[str, frozenset[DType]]] = MappingProxyType(
    {ANY: frozenset(ALL_DTYPES)}
    | {
        category.value: frozenset(one for one in ALL_DTYPES if one.category is category)
        for category in Category
        if category is not Category.QUANTIZED
    }
    | {str(dtype): frozenset({dtype}) for dtype in ALL_DTYPES if not dtype.is_bool}
)


@dataclass(frozen=True, slots=True)
class CustomOperation:
    """One operation of an operator's: a name, what goes in, what comes out, and a function.

    Calling it calls the function, so that a test can: ``swish(numpy, x)``.
    """

    name: str
    inputs: Mapping[str, str]
    outputs: tuple[str, ...]
    shapes: ShapeRule
    function: Callable[..., Any]
    accepted: tuple[frozenset[DType], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.name.isprintable() or not 0 < len(self.name) <= MAX_NAME_CHARACTERS:
            raise UsageError(
                f"a custom operation's name is 1 to {MAX_NAME_CHARACTERS} printable characters, "
                f"not {self.name[:MAX_NAME_CHARACTERS]!r}"
            )
        if not self.outputs:
            raise UsageError(f"the custom operation {self.name!r} has no outputs")
        for argument, words in self.inputs.items():
            for word in words.split():
                if word not in _DTYPES:
                    raise UsageError(
                        f"the input {argument!r} of the custom operation {self.name!r} is "
                        f"{word!r}; expected {', '.join(_DTYPES)}, or several with spaces between"
                    )
        accepted = tuple(
            frozenset[DType]().union(*(_DTYPES[word] for word in words.split()))
            for words in self.inputs.values()
        )
        object.__setattr__(self, "accepted", accepted)

    def __call__(self, xp: Any, *arrays: Any) -> Any:
        return self.function(xp, *arrays)


def custom_operation(
    name: str,
    *,
    inputs: Mapping[str, str],
    shapes: ShapeRule,
    outputs: Sequence[str] = ("out",),
) -> Callable[[Callable[..., Any]], CustomOperation]:
    """Make a function an operation that clients call by ``name``.

    ``inputs`` maps the name of each input to the dtypes that it may have: ``"any"``, a category
    (``"float"``, ``"int"``, ``"uint"``, ``"bool"``), names such as ``"float32"``, or several with
    spaces between. ``outputs`` names the outputs. ``shapes(*inputs)`` gets the ``TensorSpec`` of
    each input and returns that of the output, or a sequence of several; what it raises refuses the
    call. It runs before the function, once per combination of inputs, and decides what the session
    must have room for.

    The function gets the array module, NumPy or CuPy, and one array of it per input; it returns an
    array, or one for each output, with exactly the shapes and dtypes of the rule. It runs in
    several threads at once, must not change its inputs, and must not change later what it
    returned. ``bfloat16`` arrays have the dtype of ``ml_dtypes``.

    Raises ``UsageError`` for a name or dtype that cannot be.
    """

    def register(function: Callable[..., Any]) -> CustomOperation:
        return CustomOperation(
            name, MappingProxyType(dict(inputs)), tuple(outputs), shapes, function
        )

    return register


class CustomOperations:
    """The custom operations that a session can call, by name.

    Raises ``UsageError`` for two of one name, and for anything else than custom operations.
    """

    def __init__(self, operations: Iterable[object] = ()) -> None:
        self._by_name: dict[str, CustomOperation] = {}
        for operation in operations:
            if not isinstance(operation, CustomOperation):
                raise UsageError(
                    f"{operation!r} is no custom operation; decorate a function with "
                    "burn_remote_server.custom.custom_operation"
                )
            known = self._by_name.setdefault(operation.name, operation)
            if known is not operation:
                raise UsageError(f"there are two custom operations {operation.name!r}")

    def __iter__(self) -> Iterator[CustomOperation]:
        return iter(self._by_name.values())

    def find(self, name: str) -> CustomOperation | None:
        """Return the operation of a name."""
        return self._by_name.get(name)

    @property
    def names(self) -> list[str]:
        """The names, in alphabetical order."""
        return sorted(self._by_name)


NO_OPERATIONS: Final = CustomOperations()


def load_operations(modules: Iterable[str]) -> CustomOperations:
    """Import modules and return the custom operations in them.

    Raises ``UsageError``, in one sentence, for a module that cannot be imported or has none.
    """
    return CustomOperations(operation for module in modules for operation in _operations_of(module))


def _operations_of(module: str) -> list[CustomOperation]:
    try:
        found = vars(importlib.import_module(module)).values()
    except ModuleNotFoundError as error:
        where = (
            "install its package, or put its folder into PYTHONPATH"
            if error.name and (module == error.name or module.startswith(f"{error.name}."))
            else f"it needs {error.name}, which is not installed"
        )
        raise UsageError(f"custom operations: {module!r} cannot be imported; {where}") from error
    except (Exception, SystemExit) as error:  # whatever the operator's own code raises
        raise UsageError(
            f"custom operations: importing {module!r} raised {type(error).__name__}: {error}"
        ) from error
    operations = [item for item in found if isinstance(item, CustomOperation)]
    if not operations:
        raise UsageError(
            f"custom operations: {module!r} has none; decorate a function of it with "
            "burn_remote_server.custom.custom_operation"
        )
    return operations
