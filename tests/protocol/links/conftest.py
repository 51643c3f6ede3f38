"""Fixtures: each asynchronous test of links runs on every kind of event loop."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Callable, Mapping

import pytest

from support.link_servers import LOOPS


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return LOOPS


@pytest.fixture(scope="session")
def tls_contexts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ssl.SSLContext]:
    """Contexts of a server and of a client that trusts it, for ``localhost``."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = str(folder / "certificate.pem"), str(folder / "key.pem")
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )  # fmt: skip
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    return {"server": server, "client": ssl.create_default_context(cafile=certificate)}
