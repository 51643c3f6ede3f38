"""Data recorded from Burn 0.21 and 0.22: golden values, schemas, and sessions."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from burn_remote_protocol.frozen_map import FrozenMap

GOLDEN = {"0.21": "golden.jsonl.gz", "0.22": "golden-0.22.jsonl.gz"}
SCHEMAS = {"0.21": "burn-0.21-schema.json", "0.22": "burn-0.22.1-schema.json"}

DATA = Path(__file__).parents[1] / "conformance" / "data"


class Golden(NamedTuple):
    """A value serialized by Burn: its name, its bytes, and whether Burn can read them."""

    name: str
    payload: bytes
    roundtrip: bool

    @property
    def lists(self) -> Any:
        """The value as lists and dictionaries."""
        return msgpack.unpackb(self.payload, strict_map_key=False)

    @property
    def tuples(self) -> Any:
        """The value as tuples and tuples of pairs."""
        return msgpack.unpackb(self.payload, use_list=False, object_pairs_hook=FrozenMap)


@cache
def golden(type_name: str, release: str = "0.21") -> tuple[Golden, ...]:
    """Return the golden values of one Rust type in a release of Burn."""
    with gzip.open(DATA / GOLDEN[release], "rt", encoding="utf-8") as lines:
        entries = [json.loads(line) for line in lines]
    return tuple(
        Golden(entry["name"], bytes.fromhex(entry["hex"]), entry["roundtrip"])
        for entry in entries
        if entry["type"] == type_name
    )


@cache
def schema(release: str = "0.21") -> dict[str, Any]:
    """Return the schema of the IR of a release of Burn."""
    loaded: dict[str, Any] = json.loads((DATA / SCHEMAS[release]).read_text("utf-8"))
    return loaded


def recordings() -> tuple[str, ...]:
    """Return the names of the files of recorded sessions of Burn 0.21."""
    return tuple(sorted(path.name for path in DATA.glob("*.msgpack.xz")))


def recordings_0_22() -> tuple[str, ...]:
    """Return the names of the files of recorded sessions of Burn 0.22."""
    return tuple(sorted(f"burn-0.22/{path.name}" for path in DATA.glob("burn-0.22/*.xz")))


def sessions(recording: str) -> list[dict[str, Any]]:
    """Return the sessions of one file: names, and frames as they crossed the wire."""
    packed = lzma.decompress((DATA / recording).read_bytes())
    loaded: list[dict[str, Any]] = msgpack.unpackb(packed)
    return loaded


def recorded_operations(recording: str) -> Iterator[tuple[str, Any]]:
    """Yield each operation that a client registered, with the name of its session."""
    for session in sessions(recording):
        for frame in session["frames"]:
            if frame["dir"] == "c2s" and b"RegisterOperation" in frame["payload"][:40]:
                message = msgpack.unpackb(
                    frame["payload"], use_list=False, object_pairs_hook=FrozenMap
                )
                yield session["name"], message[0][1][0][0][1]
