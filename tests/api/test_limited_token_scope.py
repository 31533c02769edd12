"""A token limited to a namespace reveals nothing of other namespaces: on every route, in every role, in every text.

All objects of another team contain one marker word; no response to a limited token may contain it, for requests about
its own objects, about foreign ones, or about the foreign pods that block its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hetsched.contracts.message import HIDDEN
from hetsched.inventory.models import Cluster
from hetsched.placement.models import Decision, Pod, Shadow
from workers.schedule import run

from .conftest import Api
from .test_response_redaction import counted
from .test_route_permissions import ROUTES, TABLE, address_of

WORD = "hush"
THEIRS = f"""\
apiVersion: v1
kind: Pod
metadata:
  name: {WORD}-one
  namespace: {WORD}
  labels: {{app: {WORD}-label}}
  annotations: {{note: {WORD}-note}}
spec:
  priority: 1
  nodeName: ""
  containers:
  - name: {WORD}-main
    image: example.com/{WORD}-image
    ports: [{{containerPort: 80, hostPort: 8080}}]
    env: [{{name: X, value: {WORD}-value}}]
    resources: {{requests: {{cpu: "7", memory: 1Gi}}}}
"""
OURS = """\
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: team}
spec:
  priority: %d
  containers:
  - name: main
    image: example.com/ours
    ports: [{containerPort: 80, hostPort: 8080}]
    resources: {requests: {cpu: "%s", memory: 1Gi}}
"""
PROBES = ("readyz",)
LIMITED = ("viewer", "submitter", "operator", "policy-admin")


class Scene:
    """Two nodes full of another team's pods, some of which were evicted; and our pending pods."""

    def __init__(self, api: Callable[..., Api], cluster: Cluster) -> None:
        operator = api("operator")
        theirs = [THEIRS.replace(f"{WORD}-one", f"{WORD}-{name}") for name in ("one", "two", "three")]
        accepted = operator(
            "POST", "workloads/", {"manifest": "---\n".join(theirs)}, idempotency_key=f"{WORD}-key", status=202
        )
        self.theirs = str(accepted.json()["id"])
        run(cluster.pk)
        ours = [OURS % ("waits", 0, "7"), OURS % ("huge", 0, "900"), OURS % ("strong", 1000, "7")]
        self.ours = [
            str(operator("POST", "workloads/", manifest, kind="application/yaml", status=202).json()["id"])
            for manifest in ours
        ]
        run(cluster.pk)
        run(cluster.pk)
        operator("POST", "nodes/n1/actions/", {"action": "cordon", "reason": f"{WORD}-reason"}, if_match="*")
        operator(
            "POST",
            f"workloads/{self.theirs}/actions/",
            {"action": "retry", "reason": f"{WORD}-retry"},
            if_match=operator.tag(f"workloads/{self.theirs}/"),
        )


@pytest.fixture
def scene(api: Callable[..., Api], cluster: Cluster) -> Scene:
    return Scene(api, cluster)


ASKED: dict[str, Any] = {
    "api/v1/what-if/": {"manifest": OURS % ("new", 2000, "7"), "explain": True},
    "api/v1/policies/<str:name>/check/": {"spec": {"plugins": [{"name": "resource-fit"}]}},
    "api/v1/policies/<str:name>/preview/": {"version": 1},
    "api/v1/golden-placements/check/": {},
    "api/v1/clusters/<str:name>/advice/": {},
    "api/v1/policy-plans/preview/": {},
}


def addresses(route: str, scene: Scene) -> list[str]:
    """Fill a route in with all existing objects, in scope and out of scope."""

    def of(rows: Any, name: str, given: list[str]) -> list[str]:
        return [one.replace(name, str(pk)) for one in given for pk in rows] if name in route else given

    found = [route.replace("<int:version>", "1")]
    found = of([scene.theirs, *scene.ours], "<str:workload_id>", found)
    found = of(Decision.objects.values_list("pk", flat=True), "<int:decision_id>", found)
    found = of(Pod.objects.values_list("pk", flat=True), "<int:pod_id>", found)
    found = of(Shadow.objects.values_list("pk", flat=True) or [1], "<int:shadow_id>", found)
    if "/nodes/<str:name>/" in route:
        found = of(["n1", "n2"], "<str:name>", found)
    return [address_of(one, scene.theirs) for one in found]


@pytest.mark.parametrize("role", LIMITED)
def test_no_response_contains_foreign_names(api: Callable[..., Api], scene: Scene, role: str) -> None:
    caller, named, before = api(role, "team"), [], counted()
    for route in ROUTES:
        for address in addresses(route, scene):
            for method, body in (("GET", None), ("POST", ASKED.get(route))):
                if (route, method) not in TABLE or (method == "POST" and body is None):
                    continue
                answer = caller(method, address, body)
                # No worker runs during this test, which probes report.
                failed = answer.status_code >= 500 and route not in PROBES
                if failed or WORD in answer.content.decode().replace(address, ""):
                    named.append((method, address, answer.status_code, answer.content))
    assert not named
    assert counted() == before


def test_scene_has_out_of_scope_names(api: Callable[..., Api], scene: Scene) -> None:
    unlimited = api("operator")
    texts = [unlimited.client.get(f"/api/v1/{noun}/").content.decode() for noun in ("workloads", "decisions", "audit")]
    assert all(WORD in text for text in texts)
    asked = unlimited("POST", "what-if/", ASKED["api/v1/what-if/"]).json()
    assert asked["evictions"][0]["pod"].startswith(f"{WORD}/")


def test_redacted_text_keeps_the_numbers(api: Callable[..., Api], scene: Scene) -> None:
    answer = api("viewer", "team")("POST", "what-if/", ASKED["api/v1/what-if/"]).json()
    (eviction,) = answer["evictions"]
    assert (eviction["pod"], eviction["priority"]) == (HIDDEN, 1)
    assert "fits on n2" in answer["summary"]
    assert f"the eviction of {HIDDEN}" in answer["summary"]
