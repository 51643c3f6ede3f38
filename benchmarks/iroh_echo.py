"""Echo messages between two Iroh endpoints of this machine, framed as Burn 0.22 frames them.

    python -m pip install iroh==1.2.0
    python benchmarks/iroh_echo.py

Shows what limits a transport over the package ``iroh``: the second table is measured with the
package's copy of bytes, a loop in Python, replaced by one call of ``memmove``.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import statistics
import time
from typing import Any

from iroh import iroh_ffi

ALPN = b"burn/remote/1"
SIZES = ((100, 200), (2**20, 5))
LIMIT_SECONDS = 60


def endpoint() -> Any:
    """Return an endpoint that listens on this machine only, without a relay."""
    options = iroh_ffi.EndpointOptions(
        preset=iroh_ffi.preset_minimal(),
        bind_addr="127.0.0.1:0",
        alpns=[ALPN],
        relay_mode=iroh_ffi.RelayMode.disabled(),
    )
    return iroh_ffi.Endpoint.bind(options)


async def received(stream: Any) -> bytes:
    """Return the next message: its length, unsigned 64-bit little-endian, comes before it."""
    size = int.from_bytes(await stream.read_exact(8), "little")
    return bytes(await stream.read_exact(size))


async def send(stream: Any, message: bytes) -> None:
    """Send the length of a message, then the message."""
    await stream.write_all(len(message).to_bytes(8, "little"))
    await stream.write_all(message)


async def echo(server: Any) -> None:
    """Answer the messages of one connection until it ends."""
    accepted = await (await server.accept_next()).accept()
    stream = await (await accepted.connect()).accept_bi()
    try:
        while True:
            await send(stream.send(), await received(stream.recv()))
    except iroh_ffi.IrohError:
        return


async def measure() -> None:
    """Print the time of a round trip for each size."""
    client, server = await endpoint(), await endpoint()
    answering = asyncio.create_task(echo(server))
    address = iroh_ffi.EndpointAddr(server.id(), None, server.bound_sockets())
    connection = await client.connect(address, ALPN)
    stream = await connection.open_bi()
    for size, count in SIZES:
        message, seconds = os.urandom(size), []
        for _ in range(count):
            started = time.perf_counter()
            await send(stream.send(), message)
            assert await received(stream.recv()) == message
            seconds.append(time.perf_counter() - started)
        print(f"{size:9,} bytes: {statistics.median(seconds) * 1e3:10.2f} ms")
    connection.close(0, b"done")
    await answering
    await client.close()
    await server.close()


def copied_at_once(self: Any, value: bytes) -> None:
    """Append bytes to a buffer for the Rust library in one call."""
    with self._reserve(len(value)):
        start = ctypes.addressof(self.rbuf.data.contents) + self.rbuf.len
        ctypes.memmove(start, bytes(value), len(value))


def main() -> None:
    """Measure the package as it is, and with its copy replaced."""
    print("iroh as it is")
    asyncio.run(asyncio.wait_for(measure(), LIMIT_SECONDS))
    builder: Any = iroh_ffi._UniffiRustBufferBuilder
    builder.write = copied_at_once
    print("with one copy for each message")
    asyncio.run(asyncio.wait_for(measure(), LIMIT_SECONDS))


if __name__ == "__main__":
    main()
