"""``burn_remote`` as an array namespace: its version, capabilities, devices and dtypes.

See the array API standard 2024.12, sections "Inspection" and "Array object".
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, final

from burn_remote.functions.default_device import default_device
from burn_remote.functions.dtype_information import isdtype
from burn_remote_protocol import dtypes
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.tensors import MAX_RANK

if TYPE_CHECKING:
    from burn_remote.functions.device_class import Device
    from burn_remote_protocol.dtypes import DType

__all__ = ["API_VERSION", "NamespaceInfo", "array_namespace", "namespace_info"]

API_VERSION: Final = "2024.12"
# Each version extends those before it.
_VERSIONS: Final = ("2021.12", "2022.12", "2023.12", API_VERSION)

# The dtypes of the standard; bfloat16, float16 and flex32 are additions to it.
_STANDARD: Final = (
    dtypes.BOOL, dtypes.I8, dtypes.I16, dtypes.I32, dtypes.I64,
    dtypes.U8, dtypes.U16, dtypes.U32, dtypes.U64, dtypes.F32, dtypes.F64,
    dtypes.C64, dtypes.C128,
)  # fmt: skip


@final
class NamespaceInfo:
    """What ``__array_namespace_info__`` returns: capabilities, devices and dtypes."""

    __slots__ = ()

    def capabilities(self) -> dict[str, Any]:
        """Return which optional features there are, and the largest number of axes."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": MAX_RANK,
        }

    def default_device(self) -> Device:
        """Return the device of calls with ``device=None``; open it if necessary."""
        return default_device()

    def devices(self) -> list[Device]:
        """Return the default device; a program opens others by their addresses."""
        return [default_device()]

    def default_dtypes(self, *, device: Device | None = None) -> dict[str, DType]:
        """Return the dtypes of results for which the program gives none, by kind."""
        return {
            "real floating": dtypes.F32,
            "complex floating": dtypes.C64,
            "integral": dtypes.I64,
            "indexing": dtypes.I64,
        }

    def dtypes(
        self, *, device: Device | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """Return the standard's dtypes of a kind, or of all kinds, by name.

        ``isdtype`` lists the kinds. Raises ``UsageError`` for an unknown kind.
        """
        return {str(one): one for one in _STANDARD if kind is None or isdtype(one, kind)}


def namespace_info() -> NamespaceInfo:
    """Return capabilities, devices and dtypes of this namespace (``__array_namespace_info__``)."""
    return NamespaceInfo()


def array_namespace(x: object, /, *, api_version: str | None = None) -> ModuleType:
    """Return ``burn_remote``, the namespace of the array API for tensors.

    Raises ``UsageError`` for a version that it does not have.
    """
    if api_version is not None and api_version not in _VERSIONS:
        raise UsageError(f"api_version must be one of {', '.join(_VERSIONS)}, not {api_version!r}")
    return sys.modules[__name__.partition(".")[0]]
