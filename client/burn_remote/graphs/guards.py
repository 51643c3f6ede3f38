"""Guards: the plain values that a function captures, and the check that they are unchanged.

A recorded graph contains the effect of these values, so it is valid only while they are the same.
Numbers, strings, bytes, bools, ``None``, small arrays, and small tuples, lists, sets and
dictionaries of them are plain. A function captures values from closures, global variables, default
arguments, and attributes of objects that it reaches from there or from its arguments. The search
also enters the functions and methods that it calls, if names in its code identify them. A function
in a variable or an attribute is compared by identity, because a notebook may redefine it. A name
that does not exist is guarded too, if the code that uses it has an ``except`` clause.
"""

from __future__ import annotations

import builtins
import dis
import functools
import sys
import types
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from burn_remote.functions.tensor_value import TensorValue

__all__ = ["Guard", "guards_of", "stored"]

# Bounds of the search. A larger container is not compared; a search that ends at a bound leaves
# values unguarded.
MAX_MEMBERS: Final = 64
MAX_ARRAY_BYTES: Final = 4096
MAX_DEPTH: Final = 3
MAX_OBJECTS: Final = 64
MAX_GUARDS: Final = 256

_NO_VALUE: Final = object()
_NO_ATTRIBUTES: Final[dict[Any, Any]] = {}
_NOT_PLAIN: Final = object()
# The instructions with which ``except`` and ``except*`` compare classes.
_CHECKS: Final = frozenset({"CHECK_EXC_MATCH", "CHECK_EG_MATCH"})
# Immutable types without members: the same object has the same value.
_ATOMS: Final = frozenset({int, float, complex, bool, str, bytes, types.NoneType})
# Modules whose contents do not change, by the first part of their names; ``builtins`` is one.
_CONSTANT: Final = frozenset({"burn_remote", "burn_remote_protocol", "numpy"}) | (
    sys.stdlib_module_names - {"__main__"}
)


# A step from an object to an attribute (its name) or a member (its index or key, in a tuple).
_Step = str | tuple[Any]
# Where a path begins: a function that returns the object, or the position of a static argument.
_Root = Callable[[], Any] | int


class Guard(NamedTuple):
    """A value that a graph depends on, by the path that leads to it."""

    name: str
    root: _Root
    path: tuple[_Step, ...]
    seen: object  # the value if its identity suffices, else a sentinel
    key: Hashable

    @property
    def read(self) -> Callable[[], Any] | None:
        """The function that returns the value now, if the path has no steps; else ``None``."""
        return None if self.path or isinstance(self.root, int) else self.root

    def holds(self, statics: Sequence[Any]) -> bool:
        """Return whether the value is the same as when the graph was recorded."""
        root = self.root
        now = statics[root] if isinstance(root, int) else root()
        for step in self.path:
            now = stored(now, step)
        return now is self.seen or _plain(now) == self.key


def guards_of(function: Callable[..., Any], statics: Sequence[Any]) -> tuple[Guard, ...]:
    """Return guards for the plain values that a function and its static arguments reach now."""
    search = _Search()
    for place, static in enumerate(statics):
        search.enter(static, place, (), "an argument")
    search.enter(function, lambda: function, (), "the function")
    return tuple(search.found.values())


class _Search:
    """One search. It examines only attributes whose names occur in the code that it has entered."""

    def __init__(self) -> None:
        self.found: dict[Hashable, Guard] = {}
        self._names: set[str] = set()
        # Those of code that may catch the error for a name that does not exist.
        self._caught_names: set[str] = set()
        self._functions: set[int] = set()
        self._objects: dict[int, tuple[Any, _Root, tuple[_Step, ...], str]] = {}

    def enter(self, value: Any, root: _Root, path: tuple[_Step, ...], name: str) -> None:
        """Search a function or an object."""
        if isinstance(value, functools.partial):
            for part in ("func", "args", "keywords"):
                read = functools.partial(getattr, value, part)
                self._look(read(), read, (), f"{name}.{part}")
        elif isinstance(value, types.MethodType):
            self.enter(value.__self__, functools.partial(getattr, value, "__self__"), (), "self")
            self._enter_function(value.__func__)
        elif isinstance(value, types.FunctionType):
            self._enter_function(value)
        elif isinstance(getattr(value, "__wrapped__", None), types.FunctionType):
            self._enter_function(value.__wrapped__)
        elif (
            _has_attributes(value)
            and id(value) not in self._objects
            and len(self._objects) < MAX_OBJECTS
            and len(path) <= MAX_DEPTH
        ):
            self._objects[id(value)] = value, root, path, name
            self._enter_function(type(value).__dict__.get("__call__"))
            self._look_at_attributes((value, root, path, name), self._names)

    def _enter_function(self, function: Any) -> None:
        if not isinstance(function, types.FunctionType) or id(function) in self._functions:
            return
        if _is_constant(function.__module__) or len(self._functions) >= MAX_OBJECTS:
            return
        self._functions.add(id(function))
        codes = [*_codes(function.__code__)]
        names = {name for code in codes for name in code.co_names}
        caught = {name for code in codes if _catches(code) for name in code.co_names}
        fresh = (names - self._names) | (caught - self._caught_names)
        self._names |= names
        self._caught_names |= caught
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            read = functools.partial(_contents, cell)
            self._look(read(), read, (), name, is_caught=True)
        for name in sorted(names):
            read = functools.partial(function.__globals__.get, name, _NO_VALUE)
            is_caught = name in caught and not hasattr(builtins, name)
            self._look(read(), read, (), name, is_caught=is_caught)
        for name in ("__defaults__", "__kwdefaults__"):
            read = functools.partial(getattr, function, name)
            self._look(read(), read, (), f"{function.__qualname__}.{name}")
        for known in [*self._objects.values()]:
            self._look_at_attributes(known, fresh)

    def _look_at_attributes(
        self, known: tuple[Any, _Root, tuple[_Step, ...], str], names: set[str]
    ) -> None:
        value, root, path, prefix = known
        for name in sorted(names):
            found = stored(value, name)
            if isinstance(found, property):
                self._enter_function(found.fget)
            elif isinstance(found, staticmethod | classmethod) or (
                isinstance(found, types.FunctionType) and _is_of_class(value, name)
            ):
                self._enter_function(getattr(found, "__func__", found))
            else:
                is_caught = name in self._caught_names
                self._look(found, root, (*path, name), f"{prefix}.{name}", is_caught=is_caught)

    def _look(
        self,
        value: Any,
        root: _Root,
        path: tuple[_Step, ...],
        name: str,
        *,
        is_caught: bool = False,
    ) -> None:
        if value is _NO_VALUE:
            # The function would do something else once there is a value.
            if is_caught and len(self.found) < MAX_GUARDS:
                place = (path, root if isinstance(root, int) else _identity(root))
                self.found.setdefault(place, Guard(name, root, path, _NO_VALUE, _NO_VALUE))
            return
        key = _plain(value)
        if key is not _NOT_PLAIN:
            if len(self.found) < MAX_GUARDS:
                place = (path, root if isinstance(root, int) else _identity(root))
                seen = value if _is_immutable(value) else _NOT_PLAIN
                self.found.setdefault(place, Guard(name, root, path, seen, key))
            if isinstance(key, weakref.ref):
                self.enter(value, root, path, name)
        elif type(value) not in (tuple, list, dict):
            self.enter(value, root, path, name)
        elif len(value) <= MAX_MEMBERS and len(path) <= MAX_DEPTH:
            members = value.items() if type(value) is dict else enumerate(value)
            for place, member in [*members]:
                self._look(member, root, (*path, (place,)), f"{name}[{place!r}]")


def stored(owner: Any, step: Any) -> Any:
    """Return an attribute or a member without running code of the program.

    Returns ``_NO_VALUE``, which is not plain, if there is none.
    """
    if type(step) is tuple:
        try:
            return owner[step[0]]
        except (LookupError, TypeError):
            return _NO_VALUE
    known = getattr(owner, "__dict__", _NO_ATTRIBUTES).get(step, _NO_VALUE)
    if known is _NO_VALUE and not isinstance(owner, types.ModuleType):
        for kind in owner.__mro__ if isinstance(owner, type) else type(owner).__mro__:
            known = kind.__dict__.get(step, _NO_VALUE)
            if known is not _NO_VALUE:
                break
        if isinstance(known, types.MemberDescriptorType):  # of __slots__
            return getattr(owner, known.__name__, _NO_VALUE)
    return known


def _contents(cell: types.CellType) -> Any:
    """Return the value of a closure's variable, or ``_NO_VALUE`` if it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return _NO_VALUE


def _catches(code: types.CodeType) -> bool:
    """Whether code has an ``except`` clause; ``with`` and ``finally`` do not count."""
    if not code.co_exceptiontable:
        return False
    names = [each.opname for each in dis.get_instructions(code)]
    # A clause without a class begins by discarding the exception.
    return not _CHECKS.isdisjoint(names) or ("PUSH_EXC_INFO", "POP_TOP") in pairwise(names)


def _identity(root: Any) -> Hashable:
    function = getattr(root, "func", root)
    owner = getattr(function, "__self__", None)  # the dictionary of ``dict.get``
    return id(owner), *[one if type(one) is str else id(one) for one in getattr(root, "args", ())]


def _is_constant(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _CONSTANT


def _has_attributes(value: Any) -> bool:
    if isinstance(value, types.ModuleType):
        return not _is_constant(value.__name__)
    kind = value if isinstance(value, type) else type(value)
    return kind is types.SimpleNamespace or not _is_constant(kind.__module__)


def _is_of_class(owner: Any, name: str) -> bool:
    return isinstance(owner, type) or name not in getattr(owner, "__dict__", _NO_ATTRIBUTES)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _is_immutable(value: Any) -> bool:
    """Return whether a plain value cannot change while it is the same object."""
    if type(value) is tuple:
        return all(map(_is_immutable, value))
    return type(value) in _ATOMS


def _plain(value: Any, depth: int = 0) -> Hashable:
    """Return a key that is equal for the same plain value or function, or ``_NOT_PLAIN``.

    Functions in containers are not plain: the search examines each of them.
    """
    kind = type(value)
    if kind is float or kind is complex or isinstance(value, np.generic):
        return kind, repr(value)
    if kind in _ATOMS:
        return kind, value
    if kind is np.ndarray:
        if value.nbytes > MAX_ARRAY_BYTES or value.dtype.hasobject:
            return _NOT_PLAIN
        return value.dtype.str, value.shape, value.tobytes()
    if kind not in (tuple, list, set, frozenset, dict):
        return _NOT_PLAIN if depth else _identity_key(value)
    if len(value) > MAX_MEMBERS:
        return _NOT_PLAIN
    if depth >= MAX_DEPTH:
        return _NOT_PLAIN
    members = value.items() if kind is dict else value
    keys = [_plain(one, depth + 1) for one in members]
    if any(key is _NOT_PLAIN for key in keys):
        return _NOT_PLAIN
    return kind, frozenset(keys) if kind in (set, frozenset) else tuple(keys)


def _identity_key(value: Any) -> Hashable:
    """Return a weak reference to a value that is compared by identity; else ``_NOT_PLAIN``.

    Functions are compared by identity, and so are objects of burn_remote, such as optimizers and
    devices, whose attributes are not searched. Captured tensors are refused elsewhere.
    """
    wrapped = getattr(value, "__dict__", _NO_ATTRIBUTES).get("__wrapped__")
    is_function = type(value) is types.FunctionType or type(wrapped) is types.FunctionType
    is_ours = type(value).__module__.partition(".")[0] == "burn_remote"
    if not is_function and not (is_ours and not isinstance(value, TensorValue)):
        return _NOT_PLAIN
    try:
        return weakref.ref(value)
    except TypeError:
        return _NOT_PLAIN
