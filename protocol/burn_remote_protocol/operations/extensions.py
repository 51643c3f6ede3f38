"""The rows beyond Burn 0.21's that a server has, as it announces them to its native clients.

The first servers had the rows of Burn 0.21. The native dialect gains rows with each release of this
project: those of later releases of Burn, and *extension rows*, which no release of Burn has. A
server lists those that it has in ``Welcome``. If an older server lacks the row of an operation, the
client composes the operation from older rows, or refuses it without sending it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import Unsupported
from burn_remote_protocol.operations.row import Row, Signature
from burn_remote_protocol.operations.shape_rules.checks import COMPLEX
from burn_remote_protocol.operations.table import KINDS, TABLE
from burn_remote_protocol.operations.vocabularies import Vocabulary

__all__ = [
    "ANNOUNCED",
    "EXTENSIONS_FIELD",
    "announces",
    "check_announced",
    "check_announced_dtype",
    "is_announced",
]

# The field of ``Welcome.device`` with the announced rows, by kind. Older servers do not send it.
EXTENSIONS_FIELD: Final = "extensions"


def _is_new(row: Row, kind: str) -> bool:
    first = Vocabulary.BURN_0_21
    return not (row.lifetime.includes(first) and KINDS[kind].lifetime.includes(first))


def is_announced(signature: Signature) -> bool:
    """Return whether servers announce this operation, because the first servers lack it."""
    return _is_new(signature.row, signature.kind)


# The names of all rows that servers announce, by their kind on the wire.
ANNOUNCED: Final[dict[str, list[str]]] = {
    kind: names
    for kind, about in KINDS.items()
    if (names := [row.name for row in TABLE.values() if about.has(row) and _is_new(row, kind)])
}


def announces(announced: Mapping[str, Any], row: Row) -> bool:
    """Return whether a server has a row for tensors of all real dtypes that the row takes.

    Complex kinds are not required: a server that lacks them has no complex tensors.
    """
    return all(
        row.name in announced.get(kind, ())
        for kind, about in KINDS.items()
        if about.has(row) and about.categories != COMPLEX and _is_new(row, kind)
    )


def check_announced(signature: Signature, announced: Mapping[str, Any], server: str) -> None:
    """Raise ``Unsupported`` for a row that a server did not announce."""
    if is_announced(signature) and signature.row.name not in announced.get(signature.kind, ()):
        is_complex = KINDS[signature.kind].categories == COMPLEX
        operation = f"{signature.row} of complex numbers" if is_complex else f"{signature.row}"
        raise Unsupported(
            f"the server at {server} has no {operation}: it is older than this client; "
            "update the server"
        )


def check_announced_dtype(dtype: DType, announced: Mapping[str, Any], server: str) -> None:
    """Raise ``Unsupported`` for a complex dtype if a server did not announce complex numbers."""
    if dtype.is_complex and "BaseComplex" not in announced:
        raise Unsupported(
            f"the server at {server} has no {dtype}: it is older than this client; "
            "update the server"
        )
