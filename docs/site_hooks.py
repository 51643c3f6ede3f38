"""Parts of the documentation site that are made from the code's own tables.

MkDocs calls ``on_page_markdown`` for each page. A comment such as ``<!-- names of numpy -->`` in a
page is replaced by the table of that name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath
from types import ModuleType
from typing import Any, Final

import numpy as np

import burn_remote as br
from burn_remote.diagnostics import foreign_names
from burn_remote_protocol.operations.table import TABLE
from burn_remote_protocol.operations.vocabularies import Vocabulary

__all__ = ["on_page_markdown"]

# Names of JAX and Optax among the foreign names.
JAX: Final = frozenset(
    """
    PRNGKey adam adamw all_gather all_to_all apply_updates at block_until_ready clip_by_global_norm
    custom_gradient custom_jvp device_get device_put glorot_normal glorot_uniform he_normal
    he_uniform hessian hvp jacfwd jacobian jacrev jit key lax
    pmap pmax pmean pmin ppermute psum psum_scatter remat segment_sum sgd stop_gradient tree_leaves
    tree_map
    tree_util vmap
    """.split()  # noqa: SIM905 - easier to read and to keep in order than a list
)
# Those of them that PyTorch has too.
JAX_AND_TORCH: Final = frozenset(
    "all_gather all_to_all hessian hvp jacfwd jacobian jacrev vmap".split()  # noqa: SIM905 - as above
)
# Names that NumPy has and PyTorch has not, or with another meaning.
NUMPY_ONLY: Final = frozenset(
    """
    append apply_along_axis around array average cbrt choice convolve copy correlate default_rng
    degrees delete digitize fill flags flat flatnonzero geomspace identity insert invert mod ndim
    power ptp radians rollaxis searchsorted shape shuffle size strides tobytes tofile tri
    """.split()  # noqa: SIM905 - as above
)
BURN: Final = frozenset({"inner", "is_require_grad", "require_grad"})
# Names of Ray, Dask, pandas and other libraries, which have no page.
OTHERS: Final = frozenset(
    """
    Client Session close compute connect get open persist put remote result shutdown sync to_numpy
    torch wait
    """.split()  # noqa: SIM905 - as above
)

# Public names that have a page of their own, apart from the functions.
DEVICES: Final = ("RemoteDevice", "LocalDevice", "Traffic", "Pending", "Tensor")
GRADIENTS: Final = ("grad", "value_and_grad", "vjp", "jvp", "checkpoint", "custom_vjp")
TRAINING: Final = ("autograd", "optim", "init", "tree")
ALONE: Final = ("functional", "distributed")
# docs/gradients.md describes it.
ELSEWHERE: Final = ("gradients",)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace the comments of a page by their tables, and links out of ``docs`` by their text."""
    folder = PurePosixPath(page.file.src_uri).parent
    text = re.sub(r"<!-- (names|reference) of (\w+) -->", _part, markdown)
    return re.sub(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]*)(?:#[^)]*)?\)", _inside(folder), text)


def _inside(folder: PurePosixPath) -> Any:
    """Return a replacement for links that keeps those to other pages of the site."""

    def replacement(match: re.Match[str]) -> str:
        leaves = match[2].count("../") > len(folder.parts)
        return match[1] if leaves else match[0]

    return replacement


def _part(match: re.Match[str]) -> str:
    what, name = match.groups()
    return _names(name) if what == "names" else _reference(name)


def _names(library: str) -> str:
    if library == "burn":
        methods = _table("burn", foreign_names.METHODS, "method")
        advice = "If a program uses one of these names of Burn, the client raises `AttributeError`."
        return f"## Names\n\n{advice}\n\n{methods}\n\n{_burn_rows()}"
    functions = {**foreign_names.FUNCTIONS, **foreign_names.DISTRIBUTED}
    return "\n\n".join(
        f"### {title}\n\n{_table(library, names, here)}"
        for title, names, here in (
            ("Functions", functions, "function"),
            ("Methods and attributes of tensors", foreign_names.METHODS, "method"),
        )
    )


def libraries_of(name: str, what: str) -> set[str]:
    """Return the libraries that have a name, as a ``"function"`` or as a ``"method"`` of arrays."""
    if name in OTHERS:
        return set()
    if what == "method" and name in BURN:
        return {"burn"}
    found = {"jax"} if name in JAX else set()
    places = (np.ndarray,) if what == "method" else (np, np.random, np.linalg, np.fft)
    is_collective = name in foreign_names.DISTRIBUTED
    in_places = any(hasattr(place, name) for place in places)
    if name in NUMPY_ONLY or (in_places and not is_collective):
        found.add("numpy")
    if name in JAX_AND_TORCH or name not in JAX | NUMPY_ONLY:
        found.add("pytorch")
    return found


def _table(library: str, names: Any, what: str) -> str:
    rows = [
        f"| `{name}` | {_code(advice)} |"
        for name, advice in sorted(names.items())
        if library in libraries_of(name, what)
    ]
    return "\n".join([f"| {what} | here |", "| --- | --- |", *rows])


def _code(advice: str) -> str:
    """Mark the expressions of an advice as code: what has a dot or parentheses."""
    text = advice.replace("|", "\\|")
    if re.fullmatch(r"[\w.]+(\(.*\))?", text):
        return f"`{text}`"
    return re.sub(r"\bburn_remote\.[\w.]+(\([^()]*\))?", lambda found: f"`{found[0]}`", text)


def _burn_rows() -> str:
    """Return which operations of Burn's IR each family has."""
    families: dict[str, list[str]] = {}
    for row in TABLE.values():
        if row.lifetime.includes(Vocabulary.BURN_0_21):
            families.setdefault(row.family, []).append(row.name)
    lines = [
        f"| {family} | {', '.join(f'`{name}`' for name in sorted(names))} |"
        for family, names in families.items()
    ]
    head = "## Operations\n\nThe server executes these operations of Burn 0.21's IR:\n"
    return "\n".join([head, "| family | operations |", "| --- | --- |", *lines])


def _reference(name: str) -> str:
    return "\n\n".join(f"::: {entry}" for entry in _REFERENCES[name]())


def _types() -> list[str]:
    return _public(lambda name, value: isinstance(value, type) and not _is_error(value))


def _errors() -> list[str]:
    return _public(lambda name, value: _is_error(value))


def _functions() -> list[str]:
    """Return the functions, and those of the namespaces without a page of their own."""
    functions = _public(
        lambda name, value: callable(value) and not isinstance(value, type | br.DType)
    )
    apart = {f"burn_remote.{name}" for name in GRADIENTS}
    modules = [
        name
        for name in sorted(br.__all__)
        if isinstance(getattr(br, name), ModuleType) and name not in {*TRAINING, *ALONE, *ELSEWHERE}
    ]
    return [each for each in functions if each not in apart] + _members(modules)


def _training() -> list[str]:
    return [f"burn_remote.{name}" for name in GRADIENTS] + _members(TRAINING)


def _members(modules: Iterable[str]) -> list[str]:
    return [
        f"burn_remote.{module}.{name}" for module in modules for name in getattr(br, module).__all__
    ]


def _public(accepts: Callable[[str, Any], bool]) -> list[str]:
    names = sorted((each for each in br.__all__ if each not in DEVICES), key=str.lower)
    return [f"burn_remote.{name}" for name in names if accepts(name, getattr(br, name))]


def _is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, br.BurnRemoteError)


_REFERENCES: Final[Mapping[str, Callable[[], list[str]]]] = {
    "types": _types,
    "functions": _functions,
    "functional": lambda: _members(["functional"]),
    "training": _training,
    "distributed": lambda: _members(["distributed"]),
    "errors": _errors,
}
