"""Definition and loading of custom operations.

The operator of a server defines them in a module of their own and passes its name to the server
with ``--custom-operations``::

    from burn_remote_server.custom import custom_operation

    @custom_operation("swish", inputs={"x": "float32 float64"}, shapes=lambda x: x)
    def swish(xp, x):
        return x / (1 + xp.exp(-x))
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from burn_remote_protocol.dtypes import ALL_DTYPES, Category, DType
from burn_remote_protocol.errors import UsageError, shown
from burn_remote_protocol.tensors import TensorSpec

__all__ = [
    "NO_OPERATIONS",
    "CustomOperation",
    "CustomOperations",
    "ShapeRule",
    "custom_operation",
    "load_operations",
]

# Returns the spec or specs of the outputs for the specs of the inputs. Raises ShapeMismatch or
# DTypeMismatch to refuse a call.
ShapeRule = Callable[..., TensorSpec | Sequence[TensorSpec]]

# Long enough for a package name as a prefix, short enough to be repeated in an error message.
MAX_NAME_CHARACTERS: Final = 100

# The words that describe an input's dtypes: "any", a category, or the name of a dtype.
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
    """A custom operation: its name, inputs, outputs, shape rule and function.

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
                        f"the input {argument!r} of the custom operation {self.name!r} has the "
                        f"dtype {word!r}; expected one or more of {', '.join(_DTYPES)}, "
                        "separated by spaces"
                    )
        accepted = tuple(
            frozenset[DType]().union(*(_DTYPES[word] for word in words.split()))
            for words in self.inputs.values()
        )
        object.__setattr__(self, "accepted", accepted)

    def __call__(self, xp: Any, *arguments: Any) -> Any:
        return self.function(xp, *arguments)


def custom_operation(
    name: str,
    *,
    inputs: Mapping[str, str],
    shapes: ShapeRule,
    outputs: Sequence[str] = ("out",),
) -> Callable[[Callable[..., Any]], CustomOperation]:
    """Make a function an operation that clients call by ``name``.

    ``inputs`` maps the name of each input to the dtypes that it accepts: ``"any"``, a category
    (``"float"``, ``"complex"``, ``"int"``, ``"uint"``, ``"bool"``), the name of a dtype such as
    ``"float32"``, or several of these separated by spaces. ``outputs`` are the names of the
    outputs.
    ``shapes(*inputs)`` takes the ``TensorSpec`` of each input and returns the ``TensorSpec`` of the
    output, or a sequence of several. It runs before the function, once per combination of input
    specs; the session reserves memory according to its result. If it raises an exception, the call
    is refused.

    The function takes the array module (NumPy or CuPy) and one array of that module per input,
    followed by the numbers of the call, if a client of Burn 0.22 sends any. It returns an array, or
    a sequence with one array per output, with exactly the shapes and dtypes that ``shapes``
    returned. It may run in several threads at once. It must not change its inputs, nor change an
    array after returning it. ``bfloat16`` arrays have the dtype of ``ml_dtypes``.

    Raises ``UsageError`` for an invalid name, an unknown dtype, and a function that does not take
    the module and the inputs.
    """

    if not isinstance(inputs, Mapping):
        raise UsageError(
            f"inputs of the custom operation {name!r} maps names to dtypes, such as "
            f'{{"x": "float32"}}, but is {shown(inputs)}'
        )

    def register(function: Callable[..., Any]) -> CustomOperation:
        _check_parameters(name, function, inputs)
        return CustomOperation(
            name, MappingProxyType(dict(inputs)), tuple(outputs), shapes, function
        )

    return register


def _check_parameters(name: str, function: Callable[..., Any], inputs: Iterable[str]) -> None:
    """Raise ``UsageError`` unless a function takes the array module and all inputs."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # functions of C may have none
        return
    call = ("xp", *inputs)
    try:
        # Numbers of the call may follow, so the function may require more parameters.
        signature.bind_partial(*call)
    except TypeError:
        raise UsageError(
            f"the custom operation {name!r} is called with ({', '.join(call)}), but its function "
            f"takes {signature}"
        ) from None


class CustomOperations:
    """The custom operations that a session can call, by name.

    Raises ``UsageError`` for two operations of one name, and for an object of another type.
    """

    def __init__(self, operations: Iterable[object] = ()) -> None:
        self._by_name: dict[str, CustomOperation] = {}
        for operation in operations:
            if not isinstance(operation, CustomOperation):
                raise UsageError(
                    f"{operation!r} is not a custom operation; decorate a function with "
                    "burn_remote_server.custom.custom_operation"
                )
            known = self._by_name.setdefault(operation.name, operation)
            if known is not operation:
                raise UsageError(f"there are two custom operations {operation.name!r}")

    def __iter__(self) -> Iterator[CustomOperation]:
        return iter(self._by_name.values())

    def find(self, name: str) -> CustomOperation | None:
        """Return the operation of a name, or ``None``."""
        return self._by_name.get(name)

    @property
    def names(self) -> list[str]:
        """The names, in alphabetical order."""
        return sorted(self._by_name)


NO_OPERATIONS: Final = CustomOperations()


def load_operations(modules: Iterable[str]) -> CustomOperations:
    """Import modules and return the custom operations in them.

    Raises ``UsageError`` for a module that cannot be imported or that defines no operation.
    """
    return CustomOperations(operation for module in modules for operation in _operations_of(module))


def _operations_of(module: str) -> list[CustomOperation]:
    try:
        found = vars(importlib.import_module(module)).values()
    except ModuleNotFoundError as error:
        where = (
            f"write {module.removesuffix('.py')}, the name of the module"
            if module.endswith(".py")
            else "install its package, or put its folder into PYTHONPATH"
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
            f"custom operations: {module!r} defines none; decorate a function in it with "
            "burn_remote_server.custom.custom_operation"
        )
    return operations
