"""For problems of the machine or the command line, the demo exits soon with one sentence."""

from __future__ import annotations

import datetime
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import containers
import pytest
import trustme

from .conftest import HERE, PORTS, PROJECT, Faulty, Program, Start, docker

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

# Ten seconds to connect, and time for a busy machine to start Python and a container.
SECONDS = 30.0
CANNOT_BEGIN = 2


def sentence(demo: Program) -> str:
    """Return the only message of a demo that could not begin."""
    assert demo.end(SECONDS) == CANNOT_BEGIN
    said = [line for line in demo.lines if line.startswith("cluster_demo: ")]
    assert len(said) == 1
    assert not [line for line in demo.lines if "Traceback" in line]
    return said[0]


def test_a_wrong_token_is_named(cluster: Faulty, outside: Start, tmp_path: Path) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("nobody's")
    assert "does not know this token" in sentence(outside(token=wrong))


def test_a_port_without_a_listener_is_named(cluster: Faulty, outside: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    nobody = f"wss://127.0.0.1:{port}"
    assert f"nothing listens at {nobody}" in sentence(outside([cluster.address("a"), nobody]))


def test_an_unreachable_address_is_named(cluster: Faulty, inside: Start) -> None:
    nowhere = "wss://203.0.113.7:3000"  # RFC 5737: a documentation address, which no network routes
    assert nowhere in sentence(inside(["wss://a:3000", nowhere]))


def test_an_unknown_host_name_is_named(cluster: Faulty, inside: Start) -> None:
    assert "wss://nobody:3000" in sentence(inside(["wss://a:3000", "wss://nobody:3000"]))


@pytest.fixture
def expired(cluster: Faulty) -> Iterator[tuple[str, Path]]:
    """Run a server with an expired certificate; yield its address and authority."""
    authority = trustme.CA()
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    certificate = authority.issue_cert("127.0.0.1", not_after=yesterday)
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # the container runs as another user
        certificate.private_key_pem.write_to_path(folder / "old.key.pem")
        for pem in certificate.cert_chain_pems:
            pem.write_to_path(folder / "old.pem", append=True)
        authority.cert_pem.write_to_path(folder / "ca.pem")
        mine = Faulty(
            PROJECT,
            also=[HERE / "compose.faults.yaml"],
            environment={**PORTS, "OLD_FOLDER": str(folder)},
        )
        mine.begin("old", "ready")
        yield mine.address("old"), folder / "ca.pem"


def test_an_expired_certificate_is_named(expired: tuple[str, Path], outside: Start) -> None:
    address, authority = expired
    said = sentence(outside([address, address + "/1"], "--ca", str(authority)))
    assert "certificate" in said
    assert "expired" in said


def containers_program(
    environment: dict[str, str], command: str = "up"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(containers.HERE / "containers.py"), command],
        env=environment,
        text=True,
        capture_output=True,
        timeout=120,
    )


def test_a_port_in_use_is_reported_with_advice(built: Faulty) -> None:
    project = f"{PROJECT}-port"
    other = Faulty(project, environment=PORTS)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        mine = {"COMPOSE_PROJECT_NAME": project, "PORT_A": str(taken.getsockname()[1])}
        try:
            done = containers_program({**built.environment, **mine})
        finally:
            other.down()
    assert done.returncode == CANNOT_BEGIN
    [said] = done.stderr.splitlines()
    assert f"port {mine['PORT_A']} of this machine cannot be used" in said
    assert "choose another one by PORT_A" in said


def test_a_stopped_docker_daemon_is_reported(built: Faulty, tmp_path: Path) -> None:
    nobody = {**built.environment, "DOCKER_HOST": f"unix://{tmp_path}/docker.sock"}
    done = containers_program(nobody)
    assert done.returncode == CANNOT_BEGIN
    [said] = done.stderr.splitlines()
    assert "Docker is not running" in said


def test_down_removes_only_this_projects_objects_and_up_starts_clean(built: Faulty) -> None:
    others = [f"{PROJECT}-others", f"not-{PROJECT}"]
    for name in others:
        docker("volume", "create", name)
        docker("network", "create", "--internal", name)
    try:
        built.up()
        with built.credentials() as (token, _):
            before = token.read_text()
        built.down()
        of_project = f"--filter=label=com.docker.compose.project={PROJECT}"
        for kind in (["ps", "--all"], ["network", "ls"], ["volume", "ls"]):
            assert docker(*kind, "--quiet", of_project) == ""
        for name in others:
            assert docker("volume", "ls", "--quiet", f"--filter=name=^{name}$") == name
            assert docker("network", "ls", "--quiet", f"--filter=name=^{name}$")
        built.up()
        with built.credentials() as (token, _):
            assert token.read_text() != before
    finally:
        for name in others:
            docker("volume", "rm", name)
            docker("network", "rm", name)


def test_clean_selects_only_the_projects_images_and_none_built_on_them(
    built: Faulty, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM burn-remote-server:local\nENV OTHER=1\n")
    other = f"not-{PROJECT}:1"
    subprocess.run(
        ["docker", "build", "--quiet", "--tag", other, str(tmp_path)],
        env=built.environment,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        found = containers.images()
        label = '{{index .Config.Labels "org.burn-remote.project"}}'
        for image in (*found, other):
            assert docker("image", "inspect", "--format", label, image) == "burn-remote"
        assert "burn-remote-server:local" in found
        assert other not in found
    finally:
        docker("rmi", other)
