"""Round-trip time of a bare echo over the same WebSocket stack."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

__all__ = ["echo_round_trip_seconds"]

# As long as a message with one operation and its read (docs/wire-native.md).
REQUEST = bytes(60)
# As long as the reply with a [16, 16] float32 tensor.
RESPONSE = bytes(1024 + 30)


async def _echo() -> None:
    """Answer each message with ``RESPONSE``, on a free port that is printed first."""
    from websockets.asyncio.server import ServerConnection, serve

    async def answer(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(RESPONSE if message else b"")

    async with serve(answer, "127.0.0.1", 0, compression=None, ping_interval=None) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.get_running_loop().create_future()


def echo_round_trip_seconds(count: int = 3000) -> float:
    """Return the median round-trip time to a server process with uvloop."""
    # Not at the top: the server also runs with the packages of other commits, and needs no client.
    from burn_remote_protocol.links.transport_registry import connect

    process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None  # started with a pipe
        port = int(process.stdout.readline())
        link = connect(f"ws://127.0.0.1:{port}")
        seconds = []
        for _ in range(count):
            start = time.perf_counter()
            link.send(REQUEST)
            link.receive()
            seconds.append(time.perf_counter() - start)
        link.close()
        return sorted(seconds)[count // 2]
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_echo())
