"""What docs/deploy holds is accepted by what it is for, and by the server that it starts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import trustme
import yaml

DOCS = Path(__file__).parent.parent / "docs"
UNIT = DOCS / "deploy" / "burn-remote-server.service"
MANIFEST = (DOCS / "deploy" / "kubernetes.yaml").read_text("utf-8")
WITHOUT_GPU = re.sub(r"^.*# GPU\n", "", MANIFEST, flags=re.MULTILINE)
# What systemd-analyze calls "OK" ends at 5.0; ours is at 1.2.
MOST_EXPOSURE = "20"

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def documents(text: str = MANIFEST) -> dict[str, dict[str, Any]]:
    """Return the documents of a manifest by their kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def container(text: str = MANIFEST) -> dict[str, Any]:
    """Return the server's container."""
    (found,) = documents(text)["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def show_config(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Have the server read its settings and say them."""
    command = [sys.executable, "-m", "burn_remote_server", *arguments, "--show-config"]
    return subprocess.run(
        command,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a certificate, its key and authority, and tokens."""
    authority = trustme.CA()
    issued = authority.issue_cert("node-a")
    for name in ("ca.pem", "ca.crt"):
        authority.cert_pem.write_to_path(tmp_path / name)
    for name in ("server.pem", "tls.crt"):
        issued.cert_chain_pems[0].write_to_path(tmp_path / name)
    for name in ("server.key", "tls.key"):
        issued.private_key_pem.write_to_path(tmp_path / name)
    (tmp_path / "tokens").write_text("alice a-token-of-sixteen-and-more\n")
    return tmp_path


# -- systemd ----------------------------------------------------------------------------------


@needs_systemd
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    # The command must exist, and is not installed where tests run.
    text = UNIT.read_text("utf-8").replace("/opt/burn-remote/bin/burn-remote-server", "/bin/true")
    unit = tmp_path / UNIT.name
    unit.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_systemd_rates_the_unit_as_hardened() -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSURE}"]
    done = subprocess.run([*command, str(UNIT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_server_accepts_the_configuration_of_the_service(files: Path) -> None:
    text = (DOCS / "running-a-server.md").read_text("utf-8")
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (files / "server.toml").write_text(toml.replace("/etc/burn-remote", str(files)))
    done = show_config("--config", str(files / "server.toml"))
    assert done.returncode == 0, done.stderr
    assert set(tomllib.loads(done.stdout)) > set(tomllib.loads(toml)) - {"peer_token"}


# -- Kubernetes -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.28", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("text", [MANIFEST, WITHOUT_GPU], ids=["gpu", "no gpu"])
def test_kubernetes_accepts_the_manifest(version: str, text: str) -> None:
    for document in documents(text).values():
        kubernetes_validate.validate(document, version, strict=True)


def test_the_schemas_find_a_misspelled_probe() -> None:
    misspelled = MANIFEST.replace("livenessProbe", "livenesProbe")
    with pytest.raises(kubernetes_validate.ValidationError, match="livenesProbe"):
        kubernetes_validate.validate(documents(misspelled)["StatefulSet"], "1.28", strict=True)


@pytest.mark.parametrize(("text", "backend"), [(MANIFEST, "cupy"), (WITHOUT_GPU, "numpy")])
def test_the_server_accepts_the_settings_of_its_container(
    text: str, backend: str, files: Path
) -> None:
    expected = {"POD_NAME": "burn-remote-0", "POD_NAMESPACE": "lab"}
    arguments = []
    for argument in container(text)["args"]:
        for name, value in expected.items():
            argument = argument.replace(f"$({name})", value)
        arguments.append(re.sub(r"/etc/burn-remote/(tokens|tls)/", f"{files}/", argument))
    done = show_config(*arguments, BURN_REMOTE_PEER_TOKEN="what-servers-show-each-other")
    assert done.returncode == 0, done.stderr
    settings = tomllib.loads(done.stdout)
    assert settings["backend"] == backend
    assert settings["advertise_address"] == "wss://burn-remote-0.burn-remote.lab.svc:3000"


def test_a_gpu_is_requested_where_the_backend_needs_one() -> None:
    assert container()["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert "nvidia.com/gpu" not in container(WITHOUT_GPU)["resources"]["limits"]
    assert "GPU" not in WITHOUT_GPU.split("---")[1]


def test_references_between_the_parts_of_the_manifest_resolve() -> None:
    found = documents()
    service, stateful = found["Service"], found["StatefulSet"]
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    server = container()
    (port,) = server["ports"]
    assert port["containerPort"] == service["spec"]["ports"][0]["port"]
    probes = [server[name] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert {probe["httpGet"]["port"] for probe in probes} == {port["name"]}
    volumes = {each["name"] for each in stateful["spec"]["template"]["spec"]["volumes"]}
    assert {each["name"] for each in server["volumeMounts"]} == volumes


def test_kubernetes_waits_longer_than_a_server_drains() -> None:
    (drain,) = [
        float(argument.partition("=")[2])
        for argument in container()["args"]
        if argument.startswith("--drain-seconds=")
    ]
    pod = documents()["StatefulSet"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > drain
