"""Backends: the interface that sessions use, and the array libraries behind it."""

from burn_remote_server.backends.interface import Backend, BackendSession, Kernel
from burn_remote_server.backends.opening import open_backends

__all__ = ["Backend", "BackendSession", "Kernel", "open_backends"]
