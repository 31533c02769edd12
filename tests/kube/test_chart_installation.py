"""The chart's default on a real API server: installed by helm, observed in shadow mode, then promoted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api
from tests.kube import access, kinds
from tests.kube.chart import CHART, PRODUCTION, of, rendered
from tests.kube.control_plane import ControlPlane
from tests.kube.local_release import LocalRelease, delete_claim, fetch
from tests.kube.scene import make_node, make_pod, pod_of
from tests.system.processes import wait_until

pytestmark = [pytest.mark.needs("helm", "etcd", "kube-apiserver", "unshare"), pytest.mark.timeout(600)]
READING = {"get", "list", "watch"}
Json = dict[str, Any]


@pytest.fixture
def installation(plane: ControlPlane, tmp_path: Path) -> Iterator[LocalRelease]:
    made = LocalRelease(plane, tmp_path)
    with kinds.installed(plane, kinds.ours()):
        made.helm("install", "live", str(CHART), "--create-namespace", "--skip-crds")
        try:
            yield made
        finally:
            made.helm("uninstall", "live")
            delete_claim(plane, "live-hetsched")
            access.wait_until_guarded(plane, guarded=False)


def bind_elsewhere(api: Api, name: str, node: str) -> None:
    """Bind a pod of the default scheduler, as kube-scheduler does."""
    body = {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}
    api.send("POST", f"/api/v1/namespaces/default/pods/{name}/binding", json.dumps(body).encode())


def calls_since(plane: ControlPlane, since: int) -> list[Json]:
    return [call for call in plane.audited()[since:] if "objectRef" in call]


def denied(calls: list[Json]) -> list[Json]:
    return [call for call in calls if call.get("responseStatus", {}).get("code") in (401, 403)]


def test_default_observes_the_cluster_and_schedules_after_promotion(api: Api, installation: LocalRelease) -> None:
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
    release = LocalRelease(plane, tmp_path)
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
