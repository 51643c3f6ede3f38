"""States of optimizers that come from a file.

Files have only tensors, by dotted names such as ``param_groups.0.lr`` and ``state.0.exp_avg``. So
lists arrive as mappings of positions, numbers as tensors without axes, and empty containers not at
all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from burn_remote.functions.tensor_value import is_tensor, read
from burn_remote.optimizers.formulas import STEP
from burn_remote.optimizers.optimizer_arguments import PARAMS
from burn_remote.tensor_files.named_tensors import nested_by_dots
from burn_remote_protocol.errors import ArgumentMismatch

__all__ = ["from_file"]

GROUPS: Final = "param_groups"
STATE: Final = "state"
# Entries of a group that are lists.
LISTS: Final = (PARAMS, "betas")


def from_file(state_dict: Any) -> Any:
    """Return what ``state_dict`` of an optimizer returned, from what loading its file returns.

    The names in the file may be nested or not. Waits for the numbers. Returns other objects as they
    are. Raises ``ArgumentMismatch`` for a list with gaps.
    """
    if not isinstance(state_dict, Mapping):
        return state_dict
    if any(str(name).startswith(f"{GROUPS}.") for name in state_dict):
        state_dict = nested_by_dots(state_dict)
    groups = state_dict.get(GROUPS)
    if not isinstance(groups, Mapping):
        return state_dict
    states = {key: dict(known) for key, known in state_dict.get(STATE, {}).items()}
    found = [dict(group) for group in _listed(GROUPS, groups)]
    for group in found:
        for name in LISTS:
            if isinstance(group.get(name), Mapping):
                group[name] = _listed(name, group[name])
        group.setdefault(PARAMS, [])  # an empty list leaves nothing in a file
    _read_numbers([*found, *[group[name] for group in found for name in LISTS if name in group]])
    _read_numbers([*states.values()], only=STEP)
    return {**state_dict, GROUPS: found, STATE: states}


def _listed(name: str, entries: Mapping[str, Any]) -> list[Any]:
    wanted = [str(place) for place in range(len(entries))]
    if {*entries} != {*wanted}:
        raise ArgumentMismatch(
            f"{name!r} of the state has the entries {', '.join(map(repr, entries))}, but the "
            "entries of a list are 0, 1, 2 and so on"
        )
    return [entries[place] for place in wanted]


def _read_numbers(containers: list[Any], only: str | None = None) -> None:
    """Replace the tensors of containers by their numbers, with one round trip for each device."""
    places = [
        (container, key)
        for container in containers
        for key, content in _entries(container)
        if is_tensor(content) and (only is None or key == only)
    ]
    numbers = read([container[key] for container, key in places])
    for (container, key), number in zip(places, numbers, strict=True):
        container[key] = number.item()


def _entries(container: dict[str, Any] | list[Any]) -> Iterable[tuple[Any, Any]]:
    return container.items() if isinstance(container, dict) else enumerate(container)
