"""The chart's default on a real API server: installed by helm, observed in shadow mode, then promoted.

Real here: helm, RBAC and the audit log of the API server, and the command of the rendered pod with its environment. No
kubelet runs pods here, so the command runs as a local process: its folders are mapped to a temporary folder, and a
mount namespace shows it the token of the release's service account, as a kubelet would.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api
from tests.kube import access, kinds
from tests.kube.chart import CHART, PRODUCTION, helm, of, rendered
from tests.kube.control_plane import ControlPlane
from tests.kube.scene import make_node, make_pod, pod_of
from tests.system.processes import ROOT, Process, children_of, free_port, plain_environment, wait_until

pytestmark = [pytest.mark.needs("helm", "etcd", "kube-apiserver", "unshare"), pytest.mark.timeout(600)]
SECRETS = "/run/secrets/kubernetes.io/serviceaccount"
READING = {"get", "list", "watch"}
MOUNTED = 'mount -t tmpfs none /run && mkdir -p "$0" && cp "$1"/* "$0" && shift && exec "$@"'
Json = dict[str, Any]


class Installation:
    """A release `live` in the namespace hetsched, and a folder in place of the volumes of its pod."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder, self.port = plane, folder, free_port()
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(plane.kubeconfig()))
        self.kubeconfig.chmod(0o600)

    def helm(self, *words: str) -> str:
        common = ["--namespace=hetsched", f"--kubeconfig={self.kubeconfig}", "--no-hooks"]
        done = helm(*words, *common)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def container(self) -> Json:
        path = "/apis/apps/v1/namespaces/hetsched/statefulsets/live-hetsched"
        (container,) = self.plane.call("GET", path)["spec"]["template"]["spec"]["containers"]
        found: Json = container
        return found

    def local(self, text: str) -> str:
        """Return a path or option of the pod for this machine."""
        folders = {"/data": f"{self.folder}/data", "8000": str(self.port)}
        for old, new in folders.items():
            text = text.replace(old, new)
        return text

    def environment(self) -> dict[str, str]:
        """Return the environment of the container, with the variables of the API server's Service."""
        own = {item["name"]: self.local(item["value"]) for item in self.container()["env"]}
        service = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.plane.port)}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**plain_environment(), **own, **service, "PATH": path}

    def mounted(self) -> Path:
        """Return a folder with the files of the service account's volume."""
        account = self.folder / "account"
        account.mkdir(exist_ok=True)
        kubeconfig = access.as_account(self.plane, "live-hetsched")
        (account / "token").write_text(kubeconfig["users"][0]["user"]["token"])
        (account / "ca.crt").write_bytes(self.plane.authority)
        (account / "namespace").write_text("hetsched")
        return account

    @contextlib.contextmanager
    def running(self) -> Iterator[Process]:
        """Run the command of the pod until the block ends."""
        words = [self.local(word) for word in self.container()["command"]]
        wrapper = ["unshare", "--map-root-user", "--mount", "sh", "-c", MOUNTED, SECRETS, str(self.mounted())]
        log = self.folder / "pod.log"
        run = Process([*wrapper, *words], env=self.environment(), log=log, cwd=ROOT)
        try:
            url = f"http://localhost:{self.port}"
            wait_until(lambda: is_ok(f"{url}/readyz?component=watch") or not run.running, what=run.said, seconds=180)
            assert run.running, run.said()
            yield run
            assert run.stop(signal.SIGTERM, seconds=60) == 0, run.said()
        finally:
            below = children_of(run.popen.pid)
            run.kill_group()
            for pid in below:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def exec(self, *words: str) -> str:
        """Run a command in the environment of the container, as `kubectl exec` does, and return its output."""
        done = subprocess.run(words, env=self.environment(), cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def is_ok(url: str, token: str = "") -> bool:
    with contextlib.suppress(OSError):
        return bool(fetch(url, token))
    return False


def fetch(url: str, token: str = "") -> Any:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as response:
        return json.loads(response.read())


@pytest.fixture
def installation(plane: ControlPlane, tmp_path: Path) -> Iterator[Installation]:
    made = Installation(plane, tmp_path)
    with kinds.installed(plane, kinds.ours()):
        made.helm("install", "live", str(CHART), "--create-namespace", "--skip-crds")
        try:
            yield made
        finally:
            made.helm("uninstall", "live")
            delete_claim(plane, "live-hetsched")
            access.wait_until_guarded(plane, guarded=False)


def delete_claim(plane: ControlPlane, name: str) -> None:
    """Delete a volume claim. No controller removes its finalizer here, and other tests apply a claim of this name."""
    path = f"/api/v1/namespaces/hetsched/persistentvolumeclaims/{name}"
    plane.call("PATCH", path, {"metadata": {"finalizers": None}}, content="application/merge-patch+json")
    plane.call("DELETE", path)


def bind_elsewhere(api: Api, name: str, node: str) -> None:
    """Bind a pod of the default scheduler, as kube-scheduler does."""
    body = {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}
    api.send("POST", f"/api/v1/namespaces/default/pods/{name}/binding", json.dumps(body).encode())


def calls_since(plane: ControlPlane, since: int) -> list[Json]:
    return [call for call in plane.audited()[since:] if "objectRef" in call]


def denied(calls: list[Json]) -> list[Json]:
    return [call for call in calls if call.get("responseStatus", {}).get("code") in (401, 403)]


def test_default_observes_the_cluster_and_schedules_after_promotion(api: Api, installation: Installation) -> None:
    plane, since = installation.plane, len(installation.plane.audited())
    for name in ("n1", "n2"):
        make_node(api, name)
    with installation.running() as run:
        assert json.loads(installation.exec("python", "manage.py", "prepare", "--admin"))["admin"]["password"]
        token = installation.exec("hetsched", "token", "create", "--role", "operator", "--name", "cli")
        assert "password" not in run.said()
        make_pod(api, "ours")
        report = f"http://localhost:{installation.port}/api/v1/shadow/report/?cluster=kubernetes"
        numbers = iter(range(30))
        wait_until(lambda: is_compared(api, report, token, next(numbers)), what=run.said, seconds=90)
        assert "nodeName" not in pod_of(api, "ours")["spec"]
        # The command of `helm test`, with the address of the local process in place of the Service.
        (test,) = of("Pod").values()
        words = test["spec"]["containers"][0]["command"]
        here = [f"--server=http://localhost:{installation.port}" if "--server" in word else word for word in words]
        installation.exec(*here)
    key = (installation.folder / "data" / "secret-key").read_text()
    calls = calls_since(plane, since)
    assert {call["verb"] for call in calls if call["objectRef"]["resource"] != "selfsubjectaccessreviews"} <= READING
    assert denied(calls) == []
    assert calls

    installation.helm("upgrade", "live", str(CHART), "--reuse-values", "--set=mode=active", "--skip-crds")
    access.wait_until_guarded(plane, guarded=True)
    since = len(plane.audited())
    with installation.running() as run:
        wait_until(lambda: pod_of(api, "ours")["spec"].get("nodeName"), what=run.said, seconds=120)
    calls = calls_since(plane, since)
    assert denied(calls) == []
    assert "binding" in {call["objectRef"].get("subresource") for call in calls}
    assert (installation.folder / "data" / "secret-key").read_text() == key


def is_compared(api: Api, report: str, token: str, number: int) -> bool:
    """Bind one more pod of another scheduler, after the informer had time to observe it; return whether hetsched has
    compared a binding.
    """
    name = f"theirs-{number}"
    make_pod(api, name, cpu="100m", schedulerName="default-scheduler")
    time.sleep(2)
    bind_elsewhere(api, name, "n1")
    time.sleep(1)
    return int(fetch(report, token)["summary"]["judged"]) > 0


def test_default_needs_no_other_object() -> None:
    """The pod refers only to objects of the release and to the default StorageClass."""
    found = {(item["kind"], item["metadata"]["name"]) for item in rendered()}
    (pod,) = [item["spec"]["template"]["spec"] for item in of("StatefulSet").values()]
    assert ("ServiceAccount", pod["serviceAccountName"]) in found
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert ("PersistentVolumeClaim", volumes["data"]["persistentVolumeClaim"]["claimName"]) in found
    assert set(volumes) == {"data", "tmp"}
    (claim,) = of("PersistentVolumeClaim").values()
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "storageClassName" not in claim["spec"]


def test_generated_secret_is_kept_on_upgrades(plane: ControlPlane, tmp_path: Path) -> None:
    release = Installation(plane, tmp_path)
    production = f"--values={PRODUCTION}"
    path = "/api/v1/namespaces/hetsched/secrets/live-hetsched"
    release.helm("install", "live", str(CHART), production, "--create-namespace", "--skip-crds")
    try:
        first = plane.call("GET", path)["data"]
        release.helm("upgrade", "live", str(CHART), production, "--skip-crds", "--set=web.replicas=3")
        assert plane.call("GET", path)["data"] == first
        release.helm("uninstall", "live")
        release.helm("install", "live", str(CHART), production, "--skip-crds")
        assert plane.call("GET", path)["data"] == first
        assert set(first) == {
            "SECRET_KEY", "DATABASE_URL", "REDIS_URL", "POSTGRES_PASSWORD", "REDIS_PASSWORD", "redis.conf",
        }  # fmt: skip
    finally:
        release.helm("uninstall", "live")
        plane.call("DELETE", path)
        delete_claim(plane, "live-hetsched-postgresql")
