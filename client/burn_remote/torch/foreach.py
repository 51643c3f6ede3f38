"""Operations on lists of tensors (``_foreach_add_``): one task for all parameters of an optimizer.

Floats are parameters of the task, because schedules and step counts change them in each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch.autograd.graph import increment_version

import burn_remote as br
from burn_remote.torch.aten.table import TABLE, overload
from burn_remote.torch.burn_tensor import (
    BurnTensor,
    check_cast,
    upload,
    value_of,
    without_repetition,
    wrap,
    write,
)
from burn_remote.torch.call_plans import Plan, Planner, common_client
from burn_remote.torch.result_strides import strides_of_results
from burn_remote.torch.value_conversion import Handler, name_of, wrapped_strided

__all__ = ["foreach"]

# Kind of a ``_foreach`` overload -> kinds of the overload for one tensor.
_KINDS: Final = {
    "": ("",),
    "List": (".Tensor", ""),
    "Scalar": (".Scalar", ".Tensor_Scalar", ""),
    "ScalarList": (".Scalar", ".Tensor_Scalar", ""),
    "Tensor": (".Tensor",),
}

# The most calls that one operation remembers; see ``Planner``.
_MAX_CALLS: Final = 64


def foreach(func: Any) -> Handler | None:
    """Return the handler of ``_foreach_add_`` and the like: one call for all parameters.

    ``None`` if the table lacks the operation on one tensor.
    """
    packet, _, kind = name_of(func).removeprefix("_foreach_").partition(".")
    writes = packet.endswith("_")
    names = [packet.removesuffix("_") + one for one in _KINDS.get(kind, ())]
    single = next((found for found in map(overload, names) if found in TABLE), None)
    if single is None:
        return None
    arguments = func._schema.arguments
    keyword = next((one.name for one in arguments if one.name in ("value", "alpha")), None)
    if keyword == "alpha" and kind != "List":
        return None
    operation = _OnLists(TABLE[single], keyword or "value")

    def handle(args: Any, kwargs: dict[str, Any]) -> Any:
        targets = args[0]
        if any(type(x) is not BurnTensor for x in targets):
            raise RuntimeError("the tensors of a list must all be on burn devices")
        last = kwargs.get(keyword) if keyword else None
        columns = list(args[1:])
        if keyword == "value" and len(columns) == 3:
            last = columns.pop()
        if kind == "ScalarList" and "scalars" in kwargs:
            columns.append(kwargs["scalars"])
        if kind == "ScalarList" and len(columns) == 3:
            last = columns.pop()
        if writes:
            if packet == "zero_":  # the CPU also writes zeros to expanded tensors
                targets = [without_repetition(x) for x in targets]
            _update(operation, [targets, *columns], last)
            return None
        values = operation.values([targets, *columns], last)
        return [
            _result_of(single, _row([targets, *columns], at), _named(keyword, last, at), value)
            for at, value in enumerate(values)
        ]

    return handle


def _member(column: Any, at: int) -> Any:
    """Return one member of a list as a list of its own. Other arguments apply to all rows."""
    return column[at : at + 1] if isinstance(column, list | tuple) else column


def _update(operation: _OnLists, columns: Sequence[Any], last: Any) -> None:
    """Write the results of all rows to the first column; one by one if rows depend on others."""
    if _is_sequential(columns):
        for at in range(len(columns[0])):
            row = [_member(column, at) for column in columns]
            _write_all(row[0], operation.values(row, _member(last, at)))
    else:
        _write_all(columns[0], operation.values(columns, last))
    # PyTorch counts the writes of single tensors itself. An inference tensor has no count.
    increment_version([x for x in columns[0] if not x.is_inference()])


def _write_all(targets: Sequence[BurnTensor], values: Sequence[br.Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        check_cast(value, target)
    for target, value in zip(targets, values, strict=True):
        write(target, value)


def _is_sequential(columns: Sequence[Any]) -> bool:
    """Return whether a row may read or write elements that another row writes.

    Then the result depends on the order of PyTorch's loop.

    The first column has the targets. Tensors of one storage share no elements if the ranges of
    storage that they span are apart.
    """
    writers: dict[int, list[int]] = {}
    for row, x in enumerate(columns[0]):
        writers.setdefault(id(x._storage.root), []).append(row)
    for column in columns:
        is_list = isinstance(column, list | tuple)
        for row, x in enumerate(column if is_list else (column,)):
            if type(x) is not BurnTensor:
                continue
            for writer in writers.get(id(x._storage.root), ()):
                is_other = writer != row or not is_list
                if is_other and len(columns[0]) > 1 and _meet(x, columns[0][writer]):
                    return True
    return False


def _meet(x: BurnTensor, y: BurnTensor) -> bool:
    """Return whether two tensors of one storage may share elements."""
    if x._storage is not y._storage:
        return True  # their offsets count elements of different sizes
    first, second = x._metadata.geometry, y._metadata.geometry
    return first.offset < second.end and second.offset < first.end


def _row(columns: Sequence[Any], at: int) -> list[Any]:
    return [x[at] if isinstance(x, list | tuple) else x for x in columns]


def _named(keyword: str | None, last: Any, at: int) -> dict[str, Any]:
    each = last[at] if isinstance(last, list | tuple) else last
    return {} if each is None else {keyword or "value": each}


def _result_of(func: Any, args: list[Any], kwargs: dict[str, Any], value: br.Tensor) -> BurnTensor:
    given = [x for x in args if type(x) is BurnTensor]
    if all(x._metadata.is_contiguous for x in given):
        return wrap(value, given[0]._place)
    made: BurnTensor = wrapped_strided(
        value, strides_of_results(func, args, kwargs), given[0]._place
    )
    return made


class _OnLists(Planner):
    """A function of the table, applied to each member of lists as one task."""

    def __init__(self, function: Callable[..., br.Tensor], keyword: str) -> None:
        super().__init__(function, _MAX_CALLS)
        self._keyword = keyword

    def values(self, columns: Sequence[Any], last: Any) -> Sequence[br.Tensor]:
        """Return one result for each row; the last argument has a keyword."""
        key: list[Any] = [torch.get_default_dtype()]
        tensors: list[br.Tensor] = []
        numbers: list[float] = []
        for column in (*columns, last):
            is_list = type(column) is list or type(column) is tuple
            key.append(len(column) if is_list else None)
            for x in column if is_list else (column,):
                if not _describe(x, key, tensors, numbers):
                    return self._one_by_one(columns, last)
        client = common_client(tensors)
        if client is None:
            return self._one_by_one(columns, last)
        found = (*key, client)
        plan = self._plans.get(found)
        if type(plan) is Plan:
            recorded = plan.recorded
            registers = recorded.numbers.run(numbers) if recorded.computes else numbers
            if registers is not None:
                made: Sequence[br.Tensor] = plan.issue(tensors, registers)
                return made
        elif self.is_recordable(found):

            def function(*given: Any) -> list[br.Tensor]:
                return self._replaced(columns, last, given)

            recorded_now = self.record(found, client, tensors, function, numbers)
            if recorded_now is not None:
                results: Sequence[br.Tensor] = recorded_now[1]
                return results
        return self._one_by_one(columns, last)

    def _replaced(self, columns: Sequence[Any], last: Any, given: Sequence[Any]) -> list[br.Tensor]:
        """Call the function with tensors and numbers in place of those of the arguments."""
        tensors = iter([one for one in given if type(one) is br.Tensor])
        numbers = iter([one for one in given if type(one) is not br.Tensor])
        taken = [_taken(column, tensors, numbers) for column in columns]
        return self._each(taken, _taken(last, tensors, numbers), len(columns[0]))

    def _one_by_one(self, columns: Sequence[Any], last: Any) -> list[br.Tensor]:
        place = columns[0][0]._place

        def value(x: Any) -> Any:
            if type(x) is list or type(x) is tuple:
                return [value(one) for one in x]
            if type(x) is BurnTensor:
                return value_of(x)
            return upload(x, place) if isinstance(x, torch.Tensor) else x

        return self._each([value(column) for column in columns], last, len(columns[0]))

    def _each(self, columns: Sequence[Any], last: Any, count: int) -> list[br.Tensor]:
        return [
            self._function(*_row(columns, at), **_named(self._keyword, last, at))
            for at in range(count)
        ]


def _describe(x: Any, key: list[Any], tensors: list[br.Tensor], numbers: list[float]) -> bool:
    """Append an argument to a key, to tensors or to numbers.

    Return ``False`` for an argument of a kind that no plan has.
    """
    kind = type(x)
    if kind is BurnTensor:
        key.append(x._metadata)
        tensors.append(value_of(x))
    elif kind is float:
        key.append(float)
        numbers.append(x)
    elif kind is int or kind is bool or x is None:
        key += (kind, x)
    else:
        return False
    return True


# Not inside ``_replaced``: an inner function that calls itself is a reference cycle that keeps
# tensors.
def _taken(x: Any, tensors: Iterator[br.Tensor], numbers: Iterator[Any]) -> Any:
    if type(x) is list or type(x) is tuple:
        return [_taken(one, tensors, numbers) for one in x]
    if type(x) is BurnTensor:
        return next(tensors)
    return next(numbers) if type(x) is float else x
