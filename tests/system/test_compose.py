"""docker-compose.yml, run without Docker: each service's own command and environment as a local process.

Only hosts and ports are rewritten; PostgreSQL and Redis are this machine's packages. One workload is submitted over
REST and decided.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import parts
from tests.system.databases import Database, postgres
from tests.system.processes import ROOT, Process, free_port, message_store, plain_environment, wait_until

pytestmark = pytest.mark.timeout(300)
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]
GIVEN = {"POSTGRES_PASSWORD": "hetsched", "REDIS_PASSWORD": "stored", "SECRET_KEY": "k" * 50}
CLUSTER = """
apiVersion: v1
kind: Node
metadata: {name: node-0, labels: {kubernetes.io/arch: amd64}}
status:
  allocatable: {cpu: "4", memory: 8Gi, pods: "10"}
  conditions: [{type: Ready, status: "True"}]
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: hello, namespace: default}
spec: {containers: [{name: main, image: "hello:1", resources: {requests: {cpu: 500m, memory: 64Mi}}}]}
"""


def interpolated(text: str) -> str:
    """Fill in `${NAME:-default}`, `${NAME:?error}` and `$$` as compose does."""

    def value(found: re.Match[str]) -> str:
        name, operator, word = found["name"], found["operator"], found["word"]
        if name is None:
            return "$"
        if name in GIVEN:
            return GIVEN[name]
        assert operator == ":-", f"{name} must be set: {word}"
        return word

    return re.sub(r"\$(?:\$|\{(?P<name>\w+)(?P<operator>:[-?])(?P<word>[^}]*)\})", value, text)


class Stack:
    """The services of the file as processes."""

    def __init__(self, database: Database, store: int, folder: Path) -> None:
        self.web_port = free_port()
        self.folder = folder
        self._places = {
            "@postgres:5432/hetsched": f"@127.0.0.1:{database.port}/{database.name}",
            "@redis:6379": f"@127.0.0.1:{store}",
            "0.0.0.0": "127.0.0.1",
            "8000": str(self.web_port),
            "/tmp/": f"{folder}/",
        }
        self.running: list[Process] = []

    def _local(self, text: str) -> str:
        text = interpolated(text)
        for there, here in self._places.items():
            text = text.replace(there, here)
        return text

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables that the image and the file set for a service."""
        image = {
            "PATH": f"{Path(sys.executable).parent}:{plain_environment()['PATH']}",
            "HETSCHED_DATA": str(self.folder),
            "HOSTNAME": socket.gethostname(),  # Docker sets this
        }
        stated = {key: self._local(value) for key, value in SERVICES[name]["environment"].items()}
        return plain_environment() | image | stated

    def start(self, name: str) -> Process:
        command = [self._local(word) for word in SERVICES[name]["command"]]
        process = Process(command, env=self.environment(name), log=self.folder / f"{name}.log", cwd=ROOT)
        self.running.append(process)
        return process

    def run(self, name: str) -> str:
        process = self.start(name)
        assert process.popen.wait(120) == 0, process.said()
        return process.said()

    def healthy(self, name: str) -> bool:
        """Run the service's own health check."""
        kind, *words = SERVICES[name]["healthcheck"]["test"]
        words = [self._local(word) for word in words]
        command = ["sh", "-c", words[0]] if kind == "CMD-SHELL" else words
        check = Process(command, env=self.environment(name), log=self.folder / "health.log", cwd=ROOT)
        return check.popen.wait(60) == 0

    def stop(self) -> None:
        for process in reversed(self.running):
            process.stop()


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    folder = Path(tempfile.mkdtemp(prefix="hetsched-compose-"))
    password = ("--requirepass", GIVEN["REDIS_PASSWORD"])
    with postgres() as database, message_store(parts.require("redis-server"), *password) as store:
        stack = Stack(database, store, folder)
        try:
            yield stack
        finally:
            stack.stop()
            shutil.rmtree(folder, ignore_errors=True)


def test_every_service_is_known_to_this_test() -> None:
    assert set(SERVICES) == {
        "postgres", "redis", "migrate", "web", "worker-schedule", "worker-io", "worker-preview", "worker-discover",
        "watch", "beat", "demo", "prometheus",
    }  # fmt: skip
    assert set(OURS) == set(SERVICES) - {"postgres", "redis", "prometheus"}


def test_secrets_have_no_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    for name in GIVEN:
        assert f"${{{name}:?" in text
        assert f"${{{name}:-" not in text


def test_tmpfs_is_bounded_and_ports_are_on_loopback() -> None:
    for name, service in SERVICES.items():
        assert all(":size=" in mount for mount in service.get("tmpfs", [])), name
        assert all(interpolated(port).startswith("127.0.0.1:") for port in service.get("ports", [])), name
    assert SERVICES["web"]["tmpfs"] == ["/tmp:size=1g"], "HETSCHED_BODIES_BYTES and one inspected file fit in"
    assert SERVICES["redis"]["tmpfs"]


def test_redis_requires_a_password() -> None:
    command = SERVICES["redis"]["command"]
    assert interpolated(command[command.index("--requirepass") + 1]) == GIVEN["REDIS_PASSWORD"]
    assert interpolated(SERVICES["redis"]["environment"]["REDISCLI_AUTH"]) == GIVEN["REDIS_PASSWORD"]
    for name in OURS:
        assert f":{GIVEN['REDIS_PASSWORD']}@redis:6379" in interpolated(SERVICES[name]["environment"]["REDIS_URL"])


def test_dependencies_exist() -> None:
    for service in SERVICES.values():
        assert set(service.get("depends_on", {})) <= set(SERVICES)


@pytest.mark.needs("postgres", "redis-server")
def test_submission_passes_all_services(stack: Stack) -> None:
    stack.run("migrate")
    watch = stack.start("watch")
    for name in ("web", "worker-schedule", "worker-io", "worker-preview", "worker-discover", "beat"):
        stack.start(name)
    for name in ("web", "worker-schedule", "worker-io", "worker-preview", "worker-discover", "beat"):
        wait_until(lambda name=name: stack.healthy(name), what=f"the health of {name}", seconds=90)

    operator, ci = Client(stack, "operator"), Client(stack, "submitter")
    operator.post("clusters/", {"name": "one", "kind": "offline", "reason": "test"})
    operator.post("clusters/one/import/?reason=test", CLUSTER.encode(), "application/yaml")
    submitted = ci.post("workloads/", POD.encode(), "application/yaml")
    decided = ci.get(f"workloads/{submitted['id']}/?wait=30")
    assert decided["state"] == "placed"
    assert [(pod["pod"], pod["node"]) for pod in decided["pods"]] == [("default/hello", "node-0")]

    assert watch.popen.poll() is None, watch.said()

    stack.run("demo")
    assert {cluster["name"] for cluster in ci.get("clusters/")["items"]} == {"one", "demo"}
    wait_until(lambda: ci.get("decisions/?cluster=demo")["items"], what="the demo stream", seconds=60)


class Client:
    """A REST client with a token that was created on the server's machine."""

    def __init__(self, stack: Stack, role: str) -> None:
        log = stack.folder / f"token-{role}.log"
        command = ["hetsched", "token", "create", "--role", role, "-o", "json"]
        process = Process(command, env=stack.environment("web"), log=log, cwd=ROOT)
        assert process.popen.wait(60) == 0, process.said()
        self._token = json.loads(process.said())["token"]
        self._base = f"http://127.0.0.1:{stack.web_port}/api/v1/"

    def get(self, path: str) -> Any:
        return self._ask(urllib.request.Request(self._base + path))

    def post(self, path: str, body: Any, kind: str = "application/json") -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._ask(urllib.request.Request(self._base + path, data, {"Content-Type": kind}))

    def _ask(self, request: urllib.request.Request) -> Any:
        request.add_header("Authorization", f"Bearer {self._token}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
