"""Build the image, run three servers and a client in containers, and clean up.

    python3 docker/containers.py demo   the full demo, from inside the network and from outside
    python3 docker/containers.py up     only the servers, at wss://127.0.0.1:3001, :3002 and :3003
    python3 docker/containers.py down   stop and remove the servers
    python3 docker/containers.py clean  like ``down``, and remove the images that this project built

``--with burn`` makes node c the server of Burn 0.21 itself, ``--with cuda`` gives the nodes a GPU.

A problem of the machine is reported in one sentence, with exit code 2. The script needs Docker with
Compose. The client outside the network also needs a Python with burn-remote installed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
DEMO: Final = HERE.parent / "examples/cluster_demo.py"
PROJECT: Final = os.environ.get("COMPOSE_PROJECT_NAME", "burn-remote")
PUBLIC_BASE: Final = "python:3.12-slim"
LOCAL_BASE: Final = "burn-remote/python-base:bookworm"
NODES: Final = ("a", "b", "c")
DEFAULT_PORTS: Final = ("3001", "3002", "3003")  # those of compose.yaml
PREBUILT: Final = HERE / "prebuilt/burn-server"
READY_SECONDS: Final = 60
# Images that others build on this project's images inherit the label, so ``clean`` also checks the
# name.
OURS: Final = ("--filter", "label=org.burn-remote.project")
NAMES: Final = ("burn-remote-server", "burn-server", LOCAL_BASE.split(":")[0])
HEALTH: Final = "{{.State.Running}} {{.State.Health.Status}}"
# Environment variables that each additional Compose file needs.
VARIABLES: Final[Mapping[str | None, Mapping[str, str]]] = {
    "cuda": {"EXTRAS": "cuda12", "IMAGE": "burn-remote-server:cuda12"},
}

HOW_TO_CONNECT: Final = """
They require a token, and their certificates are signed by a private authority:

    docker exec {node} cat /run/burn-remote/client.token > client.token
    docker exec {node} cat /run/burn-remote/ca.pem > ca.pem

    import burn_remote as br
    token = open("client.token").read().strip()
    device = br.RemoteDevice("{address}", token=token, tls="ca.pem")
"""

# Error messages of Docker, and advice.
ADVICE: Final = {
    "permission denied": "you may not use Docker; add yourself to its group, or use sudo",
    "connect to the docker daemon": "Docker is not running; start it (systemctl start docker)",
    "is already allocated": "a port is in use; choose others by PORT_A, PORT_B and PORT_C",
    "address already in use": "a port is in use; choose others by PORT_A, PORT_B and PORT_C",
    "pull access denied": "the base image cannot be pulled; name another by BASE_IMAGE",
    'get "https://': "the registry cannot be reached; name a local image by BASE_IMAGE",
    "manifest unknown": "the base image cannot be pulled; name another by BASE_IMAGE",
    "no space left on device": "Docker's disk is full; docker system df shows what occupies it",
    "could not select device driver": "Docker has no GPU; install the NVIDIA Container Toolkit",
}


class Unusable(Exception):
    """A problem of the machine, described in one sentence with advice."""


def run(
    command: Sequence[str], *, seconds: float = 600, environment: Mapping[str, str] | None = None
) -> str:
    """Run a command; return its output. Raises ``Unusable`` if it fails."""
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except FileNotFoundError:
        raise Unusable(f"{command[0]} is not installed here, or not on PATH") from None
    except subprocess.TimeoutExpired:
        raise Unusable(f"{' '.join(command[:4])} … took more than {seconds:g} s") from None
    if done.returncode:
        raise Unusable(explained(f"{done.stdout}\n{done.stderr}"))
    return done.stdout


def explained(output: str) -> str:
    """Return one sentence for Docker's error output."""
    known = (advice for sign, advice in ADVICE.items() if sign in output.lower())
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next(known, f"Docker failed: {lines[-1] if lines else 'it printed no reason'}")


def base_image() -> str:
    """Return the base image: the requested one, the public one, or one built here."""
    chosen = os.environ.get("BASE_IMAGE")
    if chosen:
        return chosen
    for command in (["image", "inspect", PUBLIC_BASE], ["pull", "--quiet", PUBLIC_BASE]):
        try:
            run(["docker", *command], seconds=120)
            return PUBLIC_BASE
        except Unusable:
            continue
    print(f"{PUBLIC_BASE} cannot be pulled; making {LOCAL_BASE} from Debian's packages")
    run([str(HERE / "make-base.sh"), LOCAL_BASE])
    return LOCAL_BASE


def burn_target() -> str:
    """Return the stage of ``burn.Dockerfile``: the prebuilt program, or a build from crates."""
    chosen = os.environ.get("BURN_TARGET")
    if chosen:
        return chosen
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = os.environ.get("CARGO_TARGET_DIR") or cache / "burn-remote/interop-target"
    for profile in ("release", "quick"):
        program = Path(built, profile, "burn-server")
        if program.exists():  # tests/interop/build.sh made it
            shutil.copy2(program, PREBUILT)
            break
    return "prebuilt" if PREBUILT.exists() else "built"


class Cluster:
    """The containers of ``compose.yaml`` and the files in ``also``, under a project's name.

    ``environment`` overrides this process's environment variables.
    """

    def __init__(
        self,
        project: str = PROJECT,
        variant: str | None = None,
        *,
        also: Sequence[Path] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        run(["docker", "info"], seconds=30)
        try:
            run(["docker", "compose", "version"], seconds=30)
            compose = ["docker", "compose"]
        except Unusable:
            run(["docker-compose", "version"], seconds=30)
            compose = ["docker-compose"]
        self.project = project
        self.variant = variant
        self._compose = [*compose, "-p", project, "-f", str(HERE / "compose.yaml")]
        if variant:
            self._compose += ["-f", str(HERE / f"compose.{variant}.yaml")]
        for file in also:
            self._compose += ["-f", str(file)]
        # BuildKit needs a plugin that may be missing; the Dockerfiles work without it.
        defaults = {"DOCKER_BUILDKIT": "0", **VARIABLES.get(variant, {})}
        self.environment = {**defaults, **os.environ, **(environment or {})}

    def compose(self, *arguments: str, seconds: float = 600) -> str:
        """Run Compose; return its output. Raises ``Unusable``."""
        return run([*self._compose, *arguments], seconds=seconds, environment=self.environment)

    def build(self) -> None:
        """Build the image if its sources have changed."""
        self.environment["BASE_IMAGE"] = base_image()
        self.compose("build", "--force-rm", NODES[0])
        if self.variant == "burn":
            self.environment["BURN_TARGET"] = burn_target()
            # A build from crates takes minutes.
            self.compose("build", "--force-rm", "c", seconds=1800)

    def up(self) -> None:
        """Start the servers and wait until they are ready. Raises ``Unusable``."""
        self.compose("up", "--detach", "--no-build", *NODES)
        deadline = time.monotonic() + READY_SECONDS
        for node in NODES:
            # Called once per node and not in the loop, because a Compose command occupies a core
            # for a second, and the nodes need the cores.
            container = self.container(node)
            inspect = ["docker", "inspect", "--format", HEALTH, container]
            while (state := run(inspect).split()) != ["true", "healthy"]:
                if state[:1] != ["true"] or time.monotonic() > deadline:
                    said = self.compose("logs", "--no-color", "--tail", "1", node).strip()
                    raise Unusable(f"node {node} is not ready; its log: {said.splitlines()[-1:]}")
                time.sleep(0.1)

    def down(self) -> None:
        """Remove containers, networks and volumes of this project."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "15")

    def container(self, node: str) -> str:
        """Return the id of a node's container, or an empty text."""
        labels = {"project": self.project, "service": node, "oneoff": "False"}
        wanted = (f"--filter=label=com.docker.compose.{name}={labels[name]}" for name in labels)
        return run(["docker", "ps", "--all", "--quiet", *wanted]).strip()

    def inspect(self, node: str, template: str) -> str:
        """Return Docker's state of a node's container."""
        return run(["docker", "inspect", "--format", template, self.container(node)]).strip()

    def inside(self, client: str) -> int:
        """Run a client in a container on the private network; return its exit code.

        ``client`` is a service of ``compose.yaml``: ``demo`` or ``train``.
        """
        return subprocess.run(self.inside_command(client), env=self.environment).returncode

    def inside_command(self, client: str, *arguments: str) -> list[str]:
        """Return the command that runs a client in the network, optionally with other arguments."""
        return [*self._compose, "run", "--rm", client, *arguments]

    def outside(self, *arguments: str) -> int:
        """Run the demo with this Python over the published ports; return its exit code."""
        with self.credentials() as trust:
            command = [*self.outside_command(*trust), *arguments]
            return subprocess.run(command, env=self.environment).returncode

    def outside_command(
        self, token: Path, authority: Path, *, addresses: Sequence[str] = ()
    ) -> list[str]:
        """Return the command of ``outside``; ``token`` and ``authority`` are files."""
        trust = ["--token-file", str(token), "--ca", str(authority)]
        return [sys.executable, str(DEMO), *(addresses or self.addresses()), *trust]

    def addresses(self) -> list[str]:
        """Return the servers' addresses for clients outside the network."""
        scheme = "ws" if self.variant == "burn" else "wss"
        return [f"{scheme}://{self.published(node)}" for node in NODES]

    def published(self, node: str) -> str:
        """Return the published host and port of a node's container."""
        return run(["docker", "port", self.container(node), "3000"]).strip()

    @contextmanager
    def credentials(self, node: str = NODES[0]) -> Iterator[tuple[Path, Path]]:
        """Yield files with the client's token and the authority, read from a running node."""
        with tempfile.TemporaryDirectory() as folder:
            files = Path(folder, "client.token"), Path(folder, "ca.pem")
            for file in files:
                secret = ["cat", f"/run/burn-remote/{file.name}"]
                file.write_text(run(["docker", "exec", self.container(node), *secret]))
            yield files


def check_ports(environment: Mapping[str, str]) -> None:
    """Raise ``Unusable`` if a port that a node publishes is in use: building takes minutes."""
    for node, default in zip(NODES, DEFAULT_PORTS, strict=True):
        variable = f"PORT_{node.upper()}"
        port = environment.get(variable) or default
        if not port.isdecimal() or port == "0":  # Compose checks the text, and Docker chooses for 0
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", int(port)))
            except OSError as error:
                raise Unusable(
                    f"port {port} of this machine cannot be used ({error.strerror}); choose "
                    f"another one by {variable} (0: any free port)"
                ) from error


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print a step and its duration."""
    print(f"{what} …", flush=True)
    start = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - start:.1f} s\n", flush=True)


def demo(cluster: Cluster) -> int:
    """Run the demo inside the network and outside of it; return the first bad exit code."""
    try:
        with timed("starting the servers"):
            cluster.up()
        print("== the client is in the network of the servers", flush=True)
        code = cluster.inside("demo")
        if code == 0:
            print("\n== data-parallel training on a and b, compared with one device", flush=True)
            code = cluster.inside("train")
        if cluster.variant == "burn":
            # Burn's server advertises no address, so other servers fetch from the address that the
            # client uses.
            print("\n== no client runs outside: its address of node c is unknown to nodes a and b")
        elif code == 0:
            print("\n== the client is outside of it:", *cluster.addresses(), flush=True)
            code = cluster.outside("--svg", "timeline.svg")
            print("who computed and moved when: timeline.svg", flush=True)
        return code
    finally:
        with timed("\nremoving containers, networks and volumes"):
            cluster.down()


def images() -> list[str]:
    """Return the names of the images that were built from this project's files."""
    named = run(["docker", "images", "--format", "{{.Repository}}:{{.Tag}}", *OURS]).split()
    chosen = {os.environ.get("IMAGE"), os.environ.get("BURN_IMAGE")}
    return [name for name in named if name in chosen or name.rpartition(":")[0] in NAMES]


def clean(cluster: Cluster) -> int:
    """Remove the project's containers, networks, volumes and images."""
    cluster.down()
    for image in images():
        run(["docker", "rmi", image])
    run(["docker", "image", "prune", "--force", *OURS])  # the intermediate stages
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    about, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=about,
        epilog=rest.replace("``", ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=["demo", "up", "down", "clean"], help="see below")
    parser.add_argument(
        "--with", dest="variant", choices=["burn", "cuda"], help="variant of the servers, see below"
    )
    options = parser.parse_args(arguments)
    command = options.command
    try:
        cluster = Cluster(variant=options.variant)
        if command == "down":
            cluster.down()
            return 0
        if command == "clean":
            return clean(cluster)
        if not any(cluster.container(node) for node in NODES):  # they would use the ports
            check_ports(cluster.environment)
        with timed("building the image"):
            cluster.build()
        if command == "demo":
            return demo(cluster)
        cluster.up()
        print("ready at", *cluster.addresses())
        if options.variant != "burn":
            print(
                HOW_TO_CONNECT.format(
                    node=cluster.container(NODES[0])[:12], address=cluster.addresses()[0]
                )
            )
        return 0
    except Unusable as error:
        print(f"docker/containers.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
