"""The files in docs/deploy are valid for systemd, Kubernetes and the server that they start."""

from __future__ import annotations

import re
import shlex
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

from support.servers import server

DOCS = Path(__file__).parent.parent / "docs"
UNIT = DOCS / "deploy" / "burn-remote-server.service"
MANIFEST = (DOCS / "deploy" / "kubernetes.yaml").read_text("utf-8")
TRAINING = (DOCS / "deploy" / "kubernetes-training.yaml").read_text("utf-8")
WITHOUT_GPU = re.sub(r"^.*# GPU\n", "", MANIFEST, flags=re.MULTILINE)
# What systemd-analyze calls "OK" ends at 5.0; ours is at 1.2.
MOST_EXPOSURE = "20"
TOKEN = "a-token-of-sixteen-and-more"
PEER_TOKEN = "what-servers-show-each-other"

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def documents(text: str = MANIFEST) -> dict[str, dict[str, Any]]:
    """Return the documents of a manifest by their kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def pod(text: str = MANIFEST) -> dict[str, Any]:
    """Return the description of a manifest's pods."""
    (found,) = [each for each in documents(text).values() if "template" in each["spec"]]
    described = found["spec"]["template"]["spec"]
    assert isinstance(described, dict)
    return described


def container(text: str = MANIFEST) -> dict[str, Any]:
    """Return the container of a manifest's pods."""
    (found,) = pod(text)["containers"]
    assert isinstance(found, dict)
    return found


def show_config(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Have the server read its settings and print them."""
    command = [sys.executable, "-m", "burn_remote_server", *arguments, "--show-config"]
    return subprocess.run(
        command,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


# The names and ports that the headless service gives to the StatefulSet's pods.
POD_NAMES = [
    f"{documents()['StatefulSet']['metadata']['name']}-{number}"
    f".{documents()['Service']['metadata']['name']}.lab.svc:3000"
    for number in range(documents()["StatefulSet"]["spec"]["replicas"])
]


def arguments_in_place(text: str, files: Path) -> list[str]:
    """Return the arguments of the first pod's container, with its files in another folder."""
    found = []
    for argument in container(text)["args"]:
        for name, value in {"POD_NAME": "burn-remote-0", "POD_NAMESPACE": "lab"}.items():
            argument = argument.replace(f"$({name})", value)
        found.append(re.sub(r"/etc/burn-remote/(tokens|tls)/", f"{files}/", argument))
    return found


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a certificate, its key and authority, and tokens."""
    authority = trustme.CA()
    issued = authority.issue_cert("node-a", "127.0.0.1")
    for name in ("ca.pem", "ca.crt"):
        authority.cert_pem.write_to_path(tmp_path / name)
    for name in ("server.pem", "tls.crt"):
        issued.cert_chain_pems[0].write_to_path(tmp_path / name)
    for name in ("server.key", "tls.key"):
        issued.private_key_pem.write_to_path(tmp_path / name)
    (tmp_path / "tokens").write_text(f"alice {TOKEN}\n")
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
    blocks = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (toml,) = [block for block in blocks if "token_file" in block]  # another is a file of tokens
    (files / "server.toml").write_text(toml.replace("/etc/burn-remote", str(files)))
    done = show_config("--config", str(files / "server.toml"))
    assert done.returncode == 0, done.stderr
    assert set(tomllib.loads(done.stdout)) > set(tomllib.loads(toml)) - {"peer_token"}


# -- Kubernetes -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.28", kubernetes_validate.latest_version()])
@pytest.mark.parametrize(
    "text", [MANIFEST, WITHOUT_GPU, TRAINING], ids=["gpu", "no gpu", "training"]
)
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
    arguments = arguments_in_place(text, files)
    done = show_config(*arguments, BURN_REMOTE_PEER_TOKEN=PEER_TOKEN)
    assert done.returncode == 0, done.stderr
    settings = tomllib.loads(done.stdout)
    assert settings["backend"] == backend
    assert settings["advertise_address"] == f"wss://{POD_NAMES[0]}"
    assert settings["peer"] == POD_NAMES


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


def created() -> dict[str, dict[str, str]]:
    """Return the keys of each secret and config map that the documented commands create.

    Each has the text or the file that it is made of.
    """
    text = (DOCS / "running-a-server.md").read_text("utf-8")
    found: dict[str, dict[str, str]] = {}
    for command in re.findall(r"kubectl create (?:\\\n|.)+", text):
        _, _, kind, *words = shlex.split(command.replace("\\\n", " "))
        name, *options = words[kind == "secret" :]
        keys = found[name] = {}
        for option in options:
            source, _, value = option.partition("=")
            key, is_named, content = value.partition("=")
            assert is_named or source == "--from-file", option
            keys[key if is_named else Path(value).name] = content if is_named else value
    return found


@pytest.mark.parametrize("text", [MANIFEST, TRAINING], ids=["servers", "training"])
def test_the_documented_commands_create_each_secret_and_config_map(text: str) -> None:
    made = created()
    for each in container(text)["env"]:
        if reference := each.get("valueFrom", {}).get("secretKeyRef"):
            assert reference["key"] in made[reference["name"]]
    used = [each.get("secret") or each.get("configMap") for each in pod(text)["volumes"]]
    for source in filter(None, used):
        keys = made[source.get("secretName") or source["name"]]
        assert {item["key"] for item in source.get("items", [])} <= set(keys)


def test_the_job_trains_on_servers_of_the_stateful_set(files: Path) -> None:
    addresses = addresses_of(arguments_in_place(TRAINING, files))
    assert len(addresses) == 2
    assert set(addresses) < {f"wss://{name}" for name in POD_NAMES}
    assert container(TRAINING)["image"] == container()["image"]


def addresses_of(arguments: list[str]) -> list[str]:
    """Return the addresses of the servers that a job trains on."""
    return [one.partition("=")[2] for one in arguments if one.startswith("--address=")]


def test_the_job_trains_with_the_tokens_certificates_and_files_of_its_pod(
    files: Path, tmp_path: Path
) -> None:
    (mounted,) = [each["configMap"] for each in pod(TRAINING)["volumes"] if "configMap" in each]
    for item in mounted["items"]:
        target = tmp_path / "examples" / item["path"]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(DOCS.parent / created()[mounted["name"]][item["key"]], target)
    # The names of pods are unknown here, and only this machine's servers are peers.
    flags = [
        argument
        for argument in arguments_in_place(WITHOUT_GPU, files)
        if not argument.startswith(("--host=", "--advertise-address=", "--peer="))
    ]
    arguments = arguments_in_place(TRAINING, files)
    with (
        server(*flags, BURN_REMOTE_PEER_TOKEN=PEER_TOKEN) as first,
        server(*flags, BURN_REMOTE_PEER_TOKEN=PEER_TOKEN) as second,
    ):
        running = [first.address, second.address]
        for pod_address, address in zip(addresses_of(arguments), running, strict=True):
            arguments[arguments.index(f"--address={pod_address}")] = f"--address={address}"
        python, program = container(TRAINING)["command"]
        assert python == "python"
        done = subprocess.run(
            [sys.executable, f"{tmp_path}{program}", *arguments],
            env={"BURN_REMOTE_TOKEN": TOKEN},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "requests while training: 0" in done.stdout
    assert "replicas are bit-identical: True" in done.stdout
