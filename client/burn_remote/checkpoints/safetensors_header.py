"""The header of a safetensors file: which tensors it has, and where their elements are.

A file is 8 bytes with the length of the header (little-endian), the header in JSON, and the
elements of all tensors one after the other, little-endian and in C order. The header maps each name
to ``dtype``, ``shape`` and ``data_offsets``; ``"__metadata__"`` maps texts to texts.

The package ``safetensors`` is not used, because it does not give bfloat16 as NumPy arrays. A file
is sent tensor by tensor, so the client holds one tensor at a time. A file may come from anywhere,
so the header is checked completely before memory is allocated for any tensor.
"""

from __future__ import annotations

import collections
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from burn_remote_protocol import dtypes
from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import UsageError, shown
from burn_remote_protocol.tensors import MAX_ELEMENTS, MAX_RANK, TensorSpec

__all__ = ["LENGTH_BYTES", "InvalidCheckpoint", "StoredTensor", "header_of", "parsed_header"]

# The length of the header is an integer of this many bytes.
LENGTH_BYTES: Final = 8

# About 100,000 tensors. A parsed header takes up to 20 times its size.
MAX_HEADER_BYTES: Final = 16 * 1024 * 1024

METADATA: Final = "__metadata__"
FIELDS: Final = frozenset({"dtype", "shape", "data_offsets"})

DTYPES: Final[dict[str, DType]] = {
    "BOOL": dtypes.BOOL,
    "U8": dtypes.U8,
    "I8": dtypes.I8,
    "U16": dtypes.U16,
    "I16": dtypes.I16,
    "F16": dtypes.F16,
    "BF16": dtypes.BF16,
    "U32": dtypes.U32,
    "I32": dtypes.I32,
    "F32": dtypes.F32,
    "U64": dtypes.U64,
    "I64": dtypes.I64,
    "F64": dtypes.F64,
}
NAMES: Final[dict[DType, str]] = {dtype: name for name, dtype in DTYPES.items()} | {
    dtypes.FLEX32: "F32",
    dtypes.BOOL_U8: "BOOL",
    dtypes.BOOL_U32: "BOOL",
}


class InvalidCheckpoint(UsageError, ValueError):
    """A file is not a valid safetensors file, or lacks a tensor that the program asked for."""


class StoredTensor(NamedTuple):
    """A tensor in a file: its elements begin at ``offset`` after the header."""

    name: str
    spec: TensorSpec
    offset: int

    @property
    def nbytes(self) -> int:
        """The size of its elements in the file; a bool takes one byte."""
        return self.spec.size * DTYPES[NAMES[self.spec.dtype]].itemsize


def parsed_header(
    length: int, header: bytes, data_bytes: int
) -> tuple[list[StoredTensor], dict[str, str]]:
    """Return the tensors in a header, in the order of their elements, and the metadata.

    ``length`` is the length that the file claims, ``header`` the bytes that could be read of it,
    and ``data_bytes`` the size of what follows. Raises ``InvalidCheckpoint`` for anything that the
    format forbids: among others overlaps, gaps, and sizes that contradict the shapes.
    """
    if length > MAX_HEADER_BYTES:
        raise InvalidCheckpoint(
            f"the header claims {length:,} bytes, and at most {MAX_HEADER_BYTES:,} are read; is "
            "this a safetensors file?"
        )
    if len(header) < length:
        raise InvalidCheckpoint(
            f"the header claims {length:,} bytes, but the file has only {len(header):,} more"
        )
    # Bounds the lists that the parser makes: an entry has two.
    if header.count(b"[") > 2 * header.count(b"{"):
        raise InvalidCheckpoint("the header has more lists than entries need")
    try:
        parsed = json.loads(header.decode(), object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpoint(f"the header is not valid JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise InvalidCheckpoint(f"the header is no JSON object, but {shown(parsed)}")
    metadata = parsed.pop(METADATA, {})
    if not isinstance(metadata, dict) or any(not isinstance(v, str) for v in metadata.values()):
        raise InvalidCheckpoint(f"{METADATA} does not map texts to texts: {shown(metadata)}")
    found = sorted(
        [_tensor(name, entry) for name, entry in parsed.items()], key=lambda one: one[1:]
    )
    _check_layout(found, data_bytes)
    return [tensor for tensor, *_ in found], metadata


def header_of(
    specs: Mapping[str, TensorSpec], metadata: Mapping[str, str]
) -> tuple[bytes, list[StoredTensor]]:
    """Return the header for tensors, with its length before it, and where their elements go.

    Larger dtypes come first, so that the elements of each tensor are aligned. Raises
    ``InvalidCheckpoint`` for metadata that are not texts, and for names that no file can have.
    """
    entries: dict[str, Any] = {}
    if metadata:
        if any(not isinstance(one, str) for pair in metadata.items() for one in pair):
            raise InvalidCheckpoint(f"metadata maps texts to texts, unlike {shown(metadata)}")
        entries[METADATA] = {**metadata}
    stored: list[StoredTensor] = []
    offset = 0
    for name in sorted(specs, key=lambda name: (-DTYPES[NAMES[specs[name].dtype]].itemsize, name)):
        _check_name(name)
        tensor = StoredTensor(name, specs[name], offset)
        stored.append(tensor)
        offset += tensor.nbytes
        entries[name] = {
            "dtype": NAMES[tensor.spec.dtype],
            "shape": [*tensor.spec.shape],
            "data_offsets": [tensor.offset, offset],
        }
    try:
        text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise InvalidCheckpoint(f"the metadata is not valid Unicode: {error}") from None
    text += b" " * (-len(text) % LENGTH_BYTES)
    if len(text) > MAX_HEADER_BYTES:
        raise InvalidCheckpoint(
            f"the names and shapes take {len(text):,} bytes, and at most {MAX_HEADER_BYTES:,} are "
            "read"
        )
    return len(text).to_bytes(LENGTH_BYTES, "little") + text, stored


def _check_layout(found: Sequence[tuple[StoredTensor, int, int]], data_bytes: int) -> None:
    """Raise ``InvalidCheckpoint`` unless the elements of tensors fill a file without gaps."""
    end = 0
    for tensor, start, stop in found:
        if start != end:
            what = "overlap" if start < end else "have a gap before"
            raise InvalidCheckpoint(
                f"the elements of {shown(tensor.name)} {what} others at {start}"
            )
        if stop - start != tensor.nbytes:
            raise InvalidCheckpoint(
                f"{shown(tensor.name)} is {tensor.spec} of {tensor.nbytes:,} bytes, but its "
                f"offsets are {stop - start:,} bytes apart"
            )
        end = stop
    if end != data_bytes:
        raise InvalidCheckpoint(
            f"the tensors take {end:,} bytes, but {data_bytes:,} follow the header; the file is "
            f"{'incomplete' if data_bytes < end else 'too long'}"
        )


def _tensor(name: str, entry: Any) -> tuple[StoredTensor, int, int]:
    """Return a tensor of the header with the offsets that it claims."""
    _check_name(name)
    if not isinstance(entry, dict) or set(entry) != FIELDS:
        raise InvalidCheckpoint(
            f"the entry {shown(name)} must have dtype, shape and data_offsets: {shown(entry)}"
        )
    dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise InvalidCheckpoint(
            f"{shown(name)} has the dtype {shown(entry['dtype'])}; tensors hold {', '.join(DTYPES)}"
        )
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _are_counts(shape) or not _is_possible(shape):
        raise InvalidCheckpoint(f"{shown(name)} has an impossible shape: {shown(shape)}")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise InvalidCheckpoint(f"{shown(name)} has impossible offsets: {shown(offsets)}")
    start, stop = offsets
    return StoredTensor(name, TensorSpec(tuple(shape), dtype), start), start, stop


def _check_name(name: str) -> None:
    """Raise ``InvalidCheckpoint`` for a name that no file can have."""
    if name == METADATA:
        raise InvalidCheckpoint(f"no tensor can have the name {METADATA!r}; rename it")
    if any("\ud800" <= one <= "\udfff" for one in name):
        raise InvalidCheckpoint(f"the name {shown(name)!a} is not valid Unicode")


def _are_counts(value: Any) -> bool:
    """Whether this is a list of integers of 64 bits that are not negative."""
    return isinstance(value, list) and all(type(one) is int and 0 <= one < 2**63 for one in value)


def _is_possible(shape: Sequence[int]) -> bool:
    """Whether an array can have this shape; NumPy limits the other axes of an empty one too."""
    return len(shape) <= MAX_RANK and math.prod([one or 1 for one in shape]) <= MAX_ELEMENTS


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = collections.Counter(name for name, _ in pairs)
        ((twice, _),) = counts.most_common(1)
        raise ValueError(f"the key {shown(twice)} occurs twice")
    return found
