"""Request ``/healthz`` of a port every 10 ms on new connections, until the standard input closes.

Imports nothing of the project, so that it starts quickly and computes little. Prints ``ready``
after the first response, and at the end the times of all responses in milliseconds as JSON.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time


def ask(port: int) -> float:
    """Return how many milliseconds a response took."""
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), 60.0) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"200" in connection.recv(100)
    return 1000 * (time.monotonic() - started)


def main() -> None:
    """Probe the port that the first argument names."""
    port = int(sys.argv[1])
    times = [ask(port)]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        times.append(ask(port))
    sys.stdout.write(json.dumps(times))


if __name__ == "__main__":
    main()
