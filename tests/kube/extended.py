"""A real kube-scheduler that calls the extender, as `deploy/extender` configures it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from hetsched.adapters.http.certificates import make_pairs

from .access import RBAC
from .control_plane import ControlPlane, find

SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "extender" / "kube-scheduler.yaml"
NAME = "kube-extended"


def certificates(folder: Path) -> Path:
    """Return a folder with a server certificate for loopback and a client certificate named `kube-scheduler`."""
    make_pairs(folder, hosts=["127.0.0.1", "localhost"], client="kube-scheduler", days=1)
    return folder


@contextmanager
def account(plane: ControlPlane) -> Iterator[dict[str, Any]]:
    """Apply the shipped permissions for the duration of the block and yield the kubeconfig of the account."""
    collections = {
        "ServiceAccount": "/api/v1/namespaces/kube-system/serviceaccounts",
        "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
        "Role": f"{RBAC}/namespaces/kube-system/roles",
        "RoleBinding": f"{RBAC}/namespaces/kube-system/rolebindings",
    }
    shipped = list(yaml.safe_load_all((SHIPPED.parent / "rbac.yaml").read_text()))
    try:
        for item in shipped:
            plane.call("POST", collections[item["kind"]], item)
        path = f"{collections['ServiceAccount']}/{NAME}/token"
        token = plane.call("POST", path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        yield {**plane.kubeconfig(), "users": [{"name": "admin", "user": {"token": token}}]}
    finally:
        for item in shipped:
            plane.call("DELETE", f"{collections[item['kind']]}/{item['metadata']['name']}")


@contextmanager
def kube_scheduler(
    plane: ControlPlane, folder: Path, port: int, *, identity: dict[str, Any] | None = None, **extender: Any
) -> Iterator[Path]:
    """Run kube-scheduler with the shipped configuration, as the administrator or as another account; yield its log."""
    kubeconfig = folder / "kube-scheduler.kubeconfig"
    kubeconfig.write_text(json.dumps(identity or plane.kubeconfig()))
    config = yaml.safe_load(SHIPPED.read_text())
    config["clientConnection"]["kubeconfig"] = str(kubeconfig)
    config["leaderElection"]["leaderElect"] = identity is not None
    (item,) = config["extenders"]
    files = {
        name: str(folder / "certificates" / "client" / Path(path).name) for name, path in item["tlsConfig"].items()
    }
    item.update(urlPrefix=f"https://127.0.0.1:{port}/extender", tlsConfig=files, **extender)
    written = folder / "kube-scheduler.json"
    written.write_text(json.dumps(config))
    log = folder / "kube-scheduler.log"
    with log.open("ab") as output:
        running = subprocess.Popen(
            [
                str(find("kube-scheduler")), f"--config={written}", "--secure-port=0", "-v=3",
                "--pod-max-in-unschedulable-pods-duration=5s",
                f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}",
            ],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        yield log
    finally:
        running.terminate()
        running.wait(20)
