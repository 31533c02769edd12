"""A release of the chart on the test control plane, whose pods run as local processes.

Real here: helm, RBAC and the audit log of the API server, and the commands of the rendered pods with their environment.
No kubelet runs pods here, so a command runs as a local process: its folders are mapped to a temporary folder, and a
mount namespace shows it the token of the release's service account, as a kubelet would.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.kube import access
from tests.kube.chart import helm
from tests.kube.control_plane import ControlPlane
from tests.system.processes import ROOT, Process, children_of, free_port, plain_environment, wait_until

OWN = Path(sys.executable).parent
SECRETS = "/run/secrets/kubernetes.io/serviceaccount"
MOUNTED = 'mount -t tmpfs none /run && mkdir -p "$0" && cp "$1"/* "$0" && shift && exec "$@"'
Json = dict[str, Any]


class LocalRelease:
    """A release in the namespace hetsched, and a folder in place of the volumes of its pod.

    `name` is the name of its objects, and `programs` the folder of its programs.
    """

    def __init__(self, plane: ControlPlane, folder: Path, name: str = "live-hetsched", programs: Path = OWN) -> None:
        self.plane, self.folder, self.name, self.programs = plane, folder, name, programs
        self.port = free_port()
        self.url = f"http://localhost:{self.port}"
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(plane.kubeconfig()))
        self.kubeconfig.chmod(0o600)

    def helm(self, *words: str) -> str:
        common = ["--namespace=hetsched", f"--kubeconfig={self.kubeconfig}", "--no-hooks"]
        done = helm(*words, *common)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def container(self) -> Json:
        path = f"/apis/apps/v1/namespaces/hetsched/statefulsets/{self.name}"
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
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        return {**plain_environment(), **own, **service, "PATH": path}

    def mounted(self) -> Path:
        """Return a folder with the files of the service account's volume."""
        account = self.folder / "account"
        account.mkdir(exist_ok=True)
        kubeconfig = access.as_account(self.plane, self.name)
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
            ready = f"{self.url}/readyz?component=watch"
            wait_until(lambda: is_ok(ready) or not run.running, what=run.said, seconds=180)
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


def delete_claim(plane: ControlPlane, name: str) -> None:
    """Delete a volume claim. No controller removes its finalizer here, and other tests apply a claim of this name."""
    path = f"/api/v1/namespaces/hetsched/persistentvolumeclaims/{name}"
    plane.call("PATCH", path, {"metadata": {"finalizers": None}}, content="application/merge-patch+json")
    plane.call("DELETE", path)
