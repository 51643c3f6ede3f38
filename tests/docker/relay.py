"""A TCP relay that adds latency in each direction.

python relay.py LISTEN_PORT HOST PORT MILLISECONDS
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Final

PIECE_BYTES: Final = 2**18
# Most chunks in transit. It bounds memory, and with the delay the throughput (chunks / delay).
MAX_CHUNKS_IN_TRANSIT: Final = 64


async def pass_on(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, seconds: float
) -> None:
    """Forward each chunk ``seconds`` after its arrival, and then the end of the stream."""
    clock = asyncio.get_running_loop()
    underway: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_CHUNKS_IN_TRANSIT)

    async def deliver() -> None:
        with contextlib.suppress(OSError):
            while True:
                due, piece = await underway.get()
                await asyncio.sleep(due - clock.time())
                if not piece:
                    break
                target.write(piece)
                await target.drain()
        target.close()

    delivery = asyncio.create_task(deliver())
    piece = b"."
    while piece and not delivery.done():
        try:
            piece = await source.read(PIECE_BYTES)
        except OSError:
            piece = b""
        await underway.put((clock.time() + seconds, piece))
    await delivery


async def serve(port: int, host: str, to: int, seconds: float) -> None:
    """Relay all connections to ``port``, forever."""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(host, to)
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            pass_on(reader, far_writer, seconds), pass_on(far_reader, writer, seconds)
        )

    async with await asyncio.start_server(relay, "0.0.0.0", port) as server:
        print(f"relaying to {host}:{to}", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    _, listen, host, to, milliseconds = sys.argv
    asyncio.run(serve(int(listen), host, int(to), float(milliseconds) / 1000))
