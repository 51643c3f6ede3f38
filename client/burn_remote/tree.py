"""Functions of nested containers: parameters, gradients and states of optimizers.

Containers are tuples, named tuples, lists, dictionaries, slices and instances of data classes, in
any nesting. Everything else is a leaf, except ``None``, which means that nothing is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from burn_remote.arguments import containers
from burn_remote.diagnostics.advice import missing_from
from burn_remote.diagnostics.foreign_names import TREE

__all__ = ["leaves", "map", "named_leaves"]

if not TYPE_CHECKING:  # hidden from type checkers, which must report missing names
    __getattr__ = missing_from(__name__, TREE)


def map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Return containers like ``tree`` with ``function`` of each leaf.

    With several containers, the function gets the leaf at the same place of each container::

        weights = br.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    ``None`` in ``tree`` stays ``None``; in ``rest``, it is passed to the function. A data class is
    rebuilt from its fields, without a call of ``__init__`` or ``__post_init__``. Raises
    ``ArgumentMismatch`` with the place where containers differ.
    """
    return containers.mapped(function, tree, *rest)


def leaves(tree: Any) -> list[Any]:
    """Return the leaves in order, without those that are ``None``."""
    return containers.leaves(tree)


def named_leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over the dotted name and the value of each leaf that is not ``None``.

    The name of ``tree["layers"][0].weight`` is ``"layers.0.weight"``, as in PyTorch.
    """
    return containers.named_leaves(tree)
