"""The extension rows that a server has, as it announces them to its clients.

Burn's vocabulary never changes within a release, but the native dialect gains rows with each
release of this project. A server lists those that it has in ``Welcome``. A client refuses an
operation that an older server lacks before it sends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from burn_remote_protocol.errors import Unsupported
from burn_remote_protocol.operations.releases import Vocabulary
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.operations.table import KINDS, TABLE

__all__ = ["ANNOUNCED", "EXTENSIONS_FIELD", "check_announced", "is_extension"]

# The field of ``Welcome.device`` with the extension rows, by kind. Older servers do not send it.
EXTENSIONS_FIELD: Final = "extensions"


def _is_only_native(lifetime: Any) -> bool:
    burn = (each for each in Vocabulary if each is not Vocabulary.NATIVE)
    return not any(lifetime.includes(each) for each in burn)


def is_extension(signature: Signature) -> bool:
    """Return whether no release of Burn can say this operation."""
    kind = KINDS[signature.kind]
    return _is_only_native(signature.row.lifetime) or _is_only_native(kind.lifetime)


# The names of all extension rows, by their kind on the wire.
ANNOUNCED: Final[dict[str, list[str]]] = {
    kind: names
    for kind, about in KINDS.items()
    if (
        names := [
            row.name
            for row in TABLE.values()
            if row.family == about.family
            and (_is_only_native(row.lifetime) or _is_only_native(about.lifetime))
        ]
    )
}


def check_announced(signature: Signature, announced: Mapping[str, Any], server: str) -> None:
    """Raise ``Unsupported`` for an extension row that a server did not announce."""
    if is_extension(signature) and signature.row.name not in announced.get(signature.kind, ()):
        raise Unsupported(
            f"the server at {server} has no {signature.row}: it is older than this client; "
            "update the server"
        )
