"""Storage of inputs that reach more code than the seeds; later runs start from them.

``python -m fuzz.kept .fuzz`` packs the results folder of a run.
"""

from __future__ import annotations

import lzma
import sys
from pathlib import Path
from typing import Final

import msgpack

from fuzz.targets import SEEDS, TARGETS

__all__ = ["kept_inputs"]

FOLDER: Final = Path(__file__).parent / "corpus"


def kept_inputs(target: str) -> list[bytes]:
    """Return the stored inputs of a target."""
    path = FOLDER / f"{target}.msgpack.xz"
    if not path.exists():
        return []
    inputs: list[bytes] = msgpack.unpackb(lzma.decompress(path.read_bytes()))
    return inputs


def keep(target: str, folder: Path) -> int:
    """Pack the inputs in a folder, without the seeds; return their number."""
    found = {path.read_bytes() for path in folder.iterdir()} - {*SEEDS[target]()}
    inputs = sorted(found, key=lambda data: (len(data), data))
    packed = lzma.compress(msgpack.packb(inputs), preset=9)
    (FOLDER / f"{target}.msgpack.xz").write_bytes(packed)
    return len(inputs)


if __name__ == "__main__":
    for folder in sorted(Path(sys.argv[1]).iterdir()):
        if folder.name in TARGETS:
            sys.stdout.write(f"{folder.name}: {keep(folder.name, folder)} inputs kept\n")
