"""The WebSocket transport: links over TCP and TLS, for threads and for event loops.

``transport`` is its entry in the registry. ``dialing`` and ``listening`` open connections.
``blocking_link`` is built from ``frame_parser``, ``frame_writer``, ``socket_streams`` and
``keepalive``; ``async_link`` wraps ``async_connection`` or ``server_connection``, which extend the
``websockets`` library.
"""
