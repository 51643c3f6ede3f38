"""The package ``iroh`` is loaded for Iroh addresses only, and its absence is explained."""

from __future__ import annotations

import subprocess
import sys

NODE = "0" * 64

LOADED = """
import sys
import burn_remote, burn_remote_protocol.links.transport_registry as registry
registry.TRANSPORTS["iroh"]
assert "iroh" not in sys.modules and "burn_remote_protocol.links.iroh.library" not in sys.modules
"""

ABSENT = """
import asyncio, sys
sys.modules["iroh"] = None  # as if it was not installed
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.links import transport_registry
async def nobody(link, request): ...
async def listen():
    async with transport_registry.listen("iroh", "127.0.0.1", 0, nobody):
        pass
for use in (
    lambda: transport_registry.connect("iroh://{node}"),
    lambda: asyncio.run(transport_registry.connect_async("iroh://{node}")),
    lambda: asyncio.run(listen()),
):
    try:
        use()
    except UsageError as error:
        assert 'run pip install "burn-remote[iroh]"' in str(error), error
    else:
        raise AssertionError("it was not refused")
"""

CHANGED = """
from iroh import iroh_ffi
del iroh_ffi._UniffiRustBuffer
from burn_remote_protocol.errors import UsageError
try:
    import burn_remote_protocol.links.iroh.library
except UsageError as error:
    assert "_UniffiRustBuffer" in str(error), error
    assert 'run pip install "burn-remote[iroh]"' in str(error), error
else:
    raise AssertionError("it was not refused")
"""


def run(program: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)


def test_the_package_is_not_loaded_before_an_iroh_address_is_used() -> None:
    run(LOADED)


def test_without_the_package_the_error_names_the_extra() -> None:
    run(ABSENT.replace("{node}", NODE))


def test_a_package_without_the_needed_functions_is_refused_with_the_extra() -> None:
    run(CHANGED)
