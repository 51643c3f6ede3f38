"""The header of a safetensors file: which tensors it has, and where their elements are.

A file is 8 bytes with the length of the header (little-endian), the header in JSON, and the
elements of all tensors one after the other, little-endian and in C order. The header maps each name
to ``dtype``, ``shape`` and ``data_offsets``; ``"__metadata__"`` maps texts to texts.

The package ``safetensors`` is not used, because it does not return bfloat16 as NumPy arrays. A file
is sent tensor by tensor, so the client holds one tensor at a time. A file may come from anywhere,
so the header is checked completely before memory is allocated for any tensor. It is parsed entry by
entry: a JSON parser would first build objects for the whole header, in up to 27 times its size,
even if the first entry is invalid.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from burn_remote_protocol import dtypes
from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import UsageError, shown
from burn_remote_protocol.tensors import MAX_ELEMENTS, MAX_RANK, TensorSpec

__all__ = ["LENGTH_BYTES", "InvalidCheckpoint", "StoredTensor", "header_of", "parsed_header"]

# The length of the header is an integer of this many bytes.
LENGTH_BYTES: Final = 8

MAX_HEADER_BYTES: Final = 16 * 1024 * 1024

# As many as fit into a header of ``MAX_HEADER_BYTES`` if their names have typical lengths. A parsed
# tensor takes about 500 bytes.
MAX_TENSORS: Final = 2**17
MAX_METADATA: Final = 2**14

# An entry of 32 dimensions, each on a line of its own with an indentation, has 1.2 KB.
MAX_ENTRY_BYTES: Final = 4096

METADATA: Final = "__metadata__"
FIELDS: Final = frozenset({"dtype", "shape", "data_offsets"})

# Tokens of JSON, with the white space after them. No valid entry has braces inside.
SPACE: Final = rb"[ \t\n\r]*+"
TEXT: Final = re.compile(rb'("(?:[^"\\]++|\\.)*+")' + SPACE, re.DOTALL)
ENTRY: Final = re.compile(rb"(\{[^{}]{0,%d}+\})%b" % (MAX_ENTRY_BYTES, SPACE))
PUNCTUATION: Final = {one: re.compile(re.escape(one) + SPACE) for one in (b"{", b"}", b":", b",")}
END: Final = re.compile(SPACE + rb"\Z")

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
    "C64": dtypes.C64,
}
NAMES: Final[dict[DType, str]] = {dtype: name for name, dtype in DTYPES.items()} | {
    dtypes.FLEX32: "F32",
    dtypes.BOOL_U8: "BOOL",
    dtypes.BOOL_U32: "BOOL",
}


class InvalidCheckpoint(UsageError, ValueError):
    """A file of tensors is not valid, or lacks a tensor that the program asked for."""


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
    and ``data_bytes`` the number of bytes after the header. Raises ``InvalidCheckpoint`` for
    anything that the format forbids, such as overlaps, gaps, and sizes that contradict the shapes.
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
    try:
        found, metadata = _Parser(header).parse()
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidCheckpoint):
            raise
        raise InvalidCheckpoint(f"the header is not valid JSON: {error}") from None
    found.sort(key=lambda one: one[1:])
    _check_layout(found, data_bytes)
    return [tensor for tensor, *_ in found], metadata


class _Parser:
    """A parser of the JSON that a header may have. ``parse`` raises ``ValueError`` for other JSON.

    Besides the header, it keeps only its results in memory.
    """

    def __init__(self, header: bytes) -> None:
        self._header: Final = header
        self._place = len(header) - len(header.lstrip(b" \t\n\r"))

    def parse(self) -> tuple[list[tuple[StoredTensor, int, int]], dict[str, str]]:
        """Return the tensors, with the offsets that the header claims, and the metadata."""
        if not self._has(b"{"):
            raise InvalidCheckpoint(f"the header is no JSON object, but {self._shown()}")
        metadata: dict[str, str] | None = None
        found: dict[str, tuple[StoredTensor, int, int]] = {}
        for name in self._names():
            if name in found or (name == METADATA and metadata is not None):
                raise ValueError(f"the key {shown(name)} occurs twice")
            if name == METADATA:
                metadata = self._metadata()
                continue
            _check_count("the header", len(found) + 1, MAX_TENSORS, "tensors")
            found[name] = _tensor(name, self._entry(name))
        if END.match(self._header, self._place) is None:
            raise ValueError(f"Extra data: {self._shown()}")
        return [*found.values()], metadata or {}

    def _metadata(self) -> dict[str, str]:
        refusal = f"{METADATA} does not map texts to texts: {self._shown()}"
        if not self._has(b"{"):
            raise InvalidCheckpoint(refusal)
        found: dict[str, str] = {}
        for name in self._names():
            if name in found:
                raise ValueError(f"the key {shown(name)} occurs twice")
            _check_count(METADATA, len(found) + 1, MAX_METADATA, "texts")
            value = self._text()
            if value is None:
                raise InvalidCheckpoint(refusal)
            found[name] = value
        return found

    def _names(self) -> Iterator[str]:
        """Iterate over the keys of an object, up to its end. The caller parses each value."""
        if self._has(b"}"):
            return
        while True:
            name = self._text()
            if name is None:
                raise ValueError(f"Expecting a name in double quotes: {self._shown()}")
            if not self._has(b":"):
                raise ValueError(f"Expecting ':' after {shown(name)}: {self._shown()}")
            yield name
            if self._has(b"}"):
                return
            if not self._has(b","):
                raise ValueError(f"Expecting ',' after the value of {shown(name)}: {self._shown()}")

    def _entry(self, name: str) -> Any:
        match = ENTRY.match(self._header, self._place)
        if match is None:
            raise _invalid_entry(name, self._shown())
        self._place = match.end()
        return json.loads(match[1].decode(), object_pairs_hook=_without_repetition)

    def _text(self) -> str | None:
        match = TEXT.match(self._header, self._place)
        if match is None:
            return None
        text = json.loads(match[1].decode())
        assert isinstance(text, str)  # it is in quotes
        self._place = match.end()
        return text

    def _has(self, token: bytes) -> bool:
        match = PUNCTUATION[token].match(self._header, self._place)
        if match is not None:
            self._place = match.end()
        return match is not None

    def _shown(self) -> str:
        """Return the next bytes as text, for an error message."""
        following = self._header[self._place : self._place + 40].decode(errors="replace")
        return following or "the end of the header"


def header_of(
    specs: Mapping[str, TensorSpec], metadata: Mapping[str, str]
) -> tuple[bytes, list[StoredTensor]]:
    """Return the header for tensors, with its length before it, and the tensors with their offsets.

    Larger dtypes come first, so that the elements of each tensor are aligned. Raises
    ``InvalidCheckpoint`` for metadata that are not texts, for names and dtypes that no file can
    have, and for more tensors or texts than ``parsed_header`` accepts.
    """
    _check_count("the header", len(specs), MAX_TENSORS, "tensors")
    _check_count(METADATA, len(metadata), MAX_METADATA, "texts")
    entries: dict[str, Any] = {}
    if metadata:
        if any(not isinstance(one, str) for pair in metadata.items() for one in pair):
            raise InvalidCheckpoint(
                f"metadata maps texts to texts, unlike {shown(metadata)}; convert them by str()"
            )
        entries[METADATA] = {**metadata}
    stored: list[StoredTensor] = []
    offset = 0
    for name, spec in specs.items():
        if spec.dtype not in NAMES:
            raise InvalidCheckpoint(f"{shown(name)} is {spec}, a dtype that no such file can have")
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
        raise _invalid_entry(name, shown(entry))
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


def _check_count(where: str, count: int, limit: int, what: str) -> None:
    if count > limit:
        raise InvalidCheckpoint(f"{where} has more than {limit:,} {what}")


def _check_name(name: str) -> None:
    """Raise ``InvalidCheckpoint`` for a name that no file can have."""
    if name == METADATA:
        raise InvalidCheckpoint(f"no tensor can have the name {METADATA!r}; rename it")
    if any("\ud800" <= one <= "\udfff" for one in name):
        raise InvalidCheckpoint(f"the name {shown(name)!a} is not valid Unicode")


def _are_counts(value: Any) -> bool:
    """Return whether this is a list of integers of 64 bits that are not negative."""
    return isinstance(value, list) and all(type(one) is int and 0 <= one < 2**63 for one in value)


def _is_possible(shape: Sequence[int]) -> bool:
    """Return whether an array can have this shape. Axes of size 0 count as 1, as in NumPy."""
    return len(shape) <= MAX_RANK and math.prod([one or 1 for one in shape]) <= MAX_ELEMENTS


def _invalid_entry(name: str, seen: str) -> InvalidCheckpoint:
    return InvalidCheckpoint(
        f"the entry {shown(name)} must have dtype, shape and data_offsets: {seen}"
    )


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a key occurs twice among {shown([name for name, _ in pairs])}")
    return found
