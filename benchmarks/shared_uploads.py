"""Load a file of 90 MB to a server of this machine, as it is and with ``share=True``.

    python benchmarks/shared_uploads.py

Prints the seconds until the server has the tensors, and the bytes sent, by each of five sessions.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import burn_remote as br

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support.servers import server

SESSIONS = (("plain", False), ("plain", False), ("first", True), ("again", True), ("again", True))


def main() -> None:
    """Run all sessions."""
    random = np.random.default_rng(0)
    weights = {f"w{i}": random.standard_normal((750, 750)).astype(np.float32) for i in range(40)}
    with tempfile.TemporaryDirectory() as folder, server() as running:
        path = Path(folder) / "weights.safetensors"
        br.save(path, weights)
        for label, share in SESSIONS:
            with br.RemoteDevice(running.address) as device:
                began = time.perf_counter()
                loaded = br.load(path, device=device, share=share)
                device.sync()
                seconds = time.perf_counter() - began
                print(f"{label:6} {seconds:.3f} s {device.traffic.bytes_sent:>12,} bytes")
                del loaded


if __name__ == "__main__":
    main()
