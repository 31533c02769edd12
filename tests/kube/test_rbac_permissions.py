"""Our account's permissions are exactly those that hetsched uses: in the table, the manifests and the calls.

Real here: RBAC of the API server, and its audit log, which records every call of our account.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import LazySettings

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.connections.access_review import RIGHTS, SUBMITTED, Right, is_served
from hetsched.adapters.kubernetes.devices.allocation import allocate, release
from hetsched.adapters.kubernetes.object_submission import SubmissionResult, create, delete, wanted
from hetsched.adapters.kubernetes.pods.binding import BindingRequest
from hetsched.adapters.kubernetes.pods.eviction import EvictionResult, EvictionTarget, evict, mark_victim
from hetsched.adapters.kubernetes.resources import OPTIONAL, PODS, SCHEDULING_POLICIES
from hetsched.contracts.objects.allocation import ClaimedDevices, DeviceGrant, DeviceMapping, ExtendedClaim
from hetsched.contracts.objects.devices import DeviceId
from hetsched.contracts.objects.submitted import ObjectToCreate
from hetsched.inventory import connections
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.connection_check import check_cluster
from hetsched.inventory.connections import api_of, connect
from hetsched.inventory.models import Cluster, ClusterKind, Node, Sync
from hetsched.journal.audit import SYSTEM
from hetsched.placement.queries.invariants import check_invariants
from hetsched.policies.models import PolicyObject
from hetsched.scheduling.informer import Informer
from tests.builtins import builtin_policies
from tests.kube import access, kinds
from tests.kube.control_plane import ControlPlane
from tests.kube.devices import clear, exactly, given, make_claim, make_class
from tests.kube.scene import an_informer, eventually, make, make_node, make_pod, pod_of, states
from workers import bind, report, schedule

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
Grant = tuple[str, str, str, str]  # group, resource with its subresource, verb, name of the object
# Every account may ask for its own permissions.
EVERY_ACCOUNT = ("authorization.k8s.io", "selfsubjectaccessreviews", "create", "")
# Permissions for features with their own tests, outside of a pod's lifecycle.
ELSEWHERE = {"allocate", "elect", "evict", "provide", "recognise agents", "submit"}


def listed(rules: list[dict[str, Any]]) -> list[Grant]:
    return [
        (group, resource, verb, name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    ]


def grant(right: Right) -> Grant:
    plural = right.resource.plural
    return (right.resource.group, f"{plural}/{right.part}" if right.part else plural, right.verb, right.name)


def test_manifests_grant_exactly_the_table() -> None:
    kinds_of_role = {"hetsched": ("", False), "hetsched-elect": ("kube-system", False), "hetsched-submit": ("", True)}
    for role, (namespace, per_namespace) in kinds_of_role.items():
        rights = [right for right in RIGHTS if (right.namespace, right.per_namespace) == (namespace, per_namespace)]
        assert sorted(listed(access.rules_of(role))) == sorted(map(grant, rights))


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Iterator[dict[str, Any]]:
    """Return our account's kubeconfig, on an API server with all watched CRDs."""
    with kinds.installed(plane, [*kinds.ours(), *kinds.theirs()]), access.granted(plane) as kubeconfig:
        yield kubeconfig


@pytest.fixture
def live(db: None, account: dict[str, Any], settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a cluster connected with our account, with one namespace for submissions."""
    settings.SECRET_KEY_GIVEN = True
    monkeypatch.setattr(connections, "_apis", {})
    builtin_policies()
    cluster = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    connect(cluster, kubeconfig=account, enrolled_namespaces=[], actor=SYSTEM, reason="test")
    return cluster


def called(plane: ControlPlane, *, since: int) -> set[Grant]:
    """Return the calls of our account, from the API server's own audit log; none of them was denied."""
    found: set[Grant] = set()
    calls = plane.audited()
    begun = max((call["requestReceivedTimestamp"] for call in calls[:since]), default="")
    for call in calls[since:]:
        if "objectRef" not in call:
            continue  # the version, and API discovery
        if call["requestReceivedTimestamp"] < begun:
            continue  # a watch of an earlier test, which is logged when it ends
        what = call["objectRef"]
        assert call.get("responseStatus", {}).get("code") not in (401, 403), call
        part = f"/{what['subresource']}" if "subresource" in what else ""
        resource = f"{what['resource']}{part}"
        found.add((what.get("apiGroup", ""), resource, call["verb"], what.get("name", "")))
    return found


def failing(follower: Informer) -> set[str]:
    """Return the kinds whose watch reports an error."""
    follower._write_sync()
    return set(Sync.objects.exclude(reason="").values_list("resource", flat=True))


def test_pod_lifecycle_uses_exactly_the_granted_permissions(api: Api, plane: ControlPlane, live: Cluster) -> None:
    since = len(plane.audited())
    make_node(api, "n1")
    assert [check.detail for check in check_cluster(live) if check.check.startswith("right ")] == []
    make(api, SCHEDULING_POLICIES, "dense", spec={"plugins": [{"name": "resource-fit"}]})
    follower = an_informer(api_of(live), live)
    eventually(follower, lambda: Node.objects.count() == 1 and PolicyObject.objects.count() == 1)
    make_pod(api, "small")
    make_pod(api, "big", cpu="64")
    make_pod(api, "taken")
    eventually(follower, lambda: len(states()) == 3)
    # Not every API server serves Kubernetes' own groups and the taints of devices: they are requested and missing.
    unserved = {(kind.group, kind.plural) for kind in OPTIONAL if not is_served(api_of(live), kind)}
    assert {group for group, plural in unserved if plural != "devicetaintrules"} <= {"scheduling.k8s.io"}
    eventually(follower, lambda: failing(follower) == {f"{plural}.{group}" for group, plural in unserved})
    assert schedule.run(live.pk) == 3
    # Another client binds one of them first, so the result of our binding has to be read.
    target = {"target": {"kind": "Node", "name": "n1"}}
    path = PODS.path(namespace="default", name="taken", part="binding")
    api.send("POST", path, json.dumps(target | {"metadata": {"name": "taken"}}).encode())
    assert bind.run(live.pk) == 2
    assert report.run(live.pk) == 3
    assert json.loads(pod_of(api, "small")["metadata"]["annotations"]["hetsched.io/allocation"])["node"] == "n1"
    eventually(follower, lambda: set(states().values()) == {"bound", "never-fits"})
    assert check_invariants() == []
    follower.ended.set()
    needed = {grant(right) for right in RIGHTS if right.purpose not in ELSEWHERE}
    by_name = {(group, resource, verb): name for group, resource, verb, name in needed}
    used = {
        (group, resource, verb, name if by_name.get((group, resource, verb)) else "")
        for group, resource, verb, name in called(plane, since=since)
    }
    watched = {(group, plural, "watch", "") for group, plural in unserved}
    assert used - {EVERY_ACCOUNT} == needed - watched


def missing_in(cluster: Cluster) -> set[str]:
    """Return the namespaces in which the cluster test finds a missing permission."""
    missing = [check.detail for check in check_cluster(cluster) if check.check.startswith("right ")]
    return {detail.partition(" in namespace ")[2].partition(":")[0] for detail in missing}


def submitted(namespace: str) -> list[ObjectToCreate]:
    """Return one object of each kind that a submission may contain."""
    pod = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "main", "image": "busybox"}]}}
    spec = {"template": pod, "selector": {"matchLabels": {"app": "x"}}, "serviceName": "x"}
    job = {"template": {**pod, "spec": {**pod["spec"], "restartPolicy": "Never"}}}
    specs = {"Pod": pod["spec"], "Job": job, "StatefulSet": spec}
    short = {key: spec[key] for key in ("template", "selector")}
    manifests = [
        {
            "apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": "x", "namespace": namespace},
            "spec": specs.get(kind.kind, short),
        }
        for kind in SUBMITTED
    ]  # fmt: skip
    text = "\n---\n".join(json.dumps(manifest) for manifest in manifests).encode()
    return wanted(text, workload="w", identity=namespace, scheduler_name="hetsched")


def test_submissions_use_their_permissions_in_enrolled_namespaces_only(
    api: Api, plane: ControlPlane, live: Cluster
) -> None:
    ours = api_of(live)
    assert {create(ours, new_object).result for new_object in submitted("default")} == {SubmissionResult.REFUSED}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "hetsched-submit"}
    subject = {"kind": "ServiceAccount", "name": "hetsched", "namespace": access.NAMESPACE}
    bindings = f"{access.RBAC}/namespaces/default/rolebindings"
    plane.call("POST", bindings, {"metadata": {"name": "hetsched-submit"}, "subjects": [subject], "roleRef": role})
    connect(live, enrolled_namespaces=["default", "other"], actor=SYSTEM, reason="test")
    live.refresh_from_db()
    until = time.monotonic() + 30
    while missing_in(live) != {"other"}:  # a role binding takes effect after a moment
        assert time.monotonic() < until
        time.sleep(0.1)
    since = len(plane.audited())
    for new_object in submitted("default"):
        made = create(ours, new_object)
        assert made.result is SubmissionResult.DONE, made
        assert create(ours, new_object) == made  # as after a lost response
        assert delete(ours, new_object, made.uid).result is SubmissionResult.DONE
    used = {(group, resource, verb, "") for group, resource, verb, _ in called(plane, since=since)}
    assert used - {EVERY_ACCOUNT} == {grant(right) for right in RIGHTS if right.purpose == "submit"}
    plane.call("DELETE", f"{bindings}/hetsched-submit")


def test_evictions_are_granted(api: Api, live: Cluster) -> None:
    make_pod(api, "victim")
    victim = EvictionTarget(1, "default", "victim", pod_of(api, "victim")["metadata"]["uid"], "Preempted by a test")
    assert evict(api_of(live), victim, only_ask=True).result is EvictionResult.ASKED
    mark_victim(api_of(live), victim, now="2026-11-21T10:00:00.000000Z", instance="test")
    (condition,) = pod_of(api, "victim")["status"]["conditions"]
    assert condition["message"] == "hetsched: Preempted by a test"


REQUESTED = {"limits": {"deviceclass.resource.kubernetes.io/gpu": "1"}}


def test_resource_claims_use_exactly_their_permissions(api: Api, plane: ControlPlane, live: Cluster) -> None:
    try:
        make_class(api)
        make_claim(api, "train", exactly("gpu"))
        ours, since = api_of(live), len(plane.audited())
        grant_of = DeviceGrant("train", "", "gpu", DeviceId("gpu.example.com", "n1", "gpu-0"))
        request = BindingRequest(1, "default", "train", "uid", "n1", device_claims=("train",), devices=(grant_of,))
        assert allocate(ours, request) is None
        assert given(api, "train") == ["n1/gpu-0"]
        release(ours, request)
        assert given(api, "train") == []
        make_pod(api, "implicit", containers=[{"name": "main", "image": "busybox", "resources": REQUESTED}])
        uid = pod_of(api, "implicit")["metadata"]["uid"]
        name = "deviceclass.resource.kubernetes.io/gpu"
        claim = ExtendedClaim("implicit", (ClaimedDevices("r", "gpu", 1),), (DeviceMapping("main", name, "r"),))
        grant_of = DeviceGrant("implicit", "", "r", DeviceId("gpu.example.com", "n1", "gpu-0"))
        request = BindingRequest(1, "default", "implicit", uid, "n1", devices=(grant_of,), extended=claim)
        allocate(ours, request)  # earlier versions do not store the claim in the status of the pod
        release(ours, request)  # the status of the pod names the claim, which remains
        plane.call("DELETE", "/api/v1/namespaces/default/pods/implicit?gracePeriodSeconds=0")
        release(ours, request)
        used = {(group, resource, verb, "") for group, resource, verb, _ in called(plane, since=since)}
        # The API server checks this permission during the status write; without it the write was denied.
        asked = {("resource.k8s.io", "resourceclaims/binding", "patch", "")}
        of_pods = {("", "pods", "get", ""), ("", "pods/status", "patch", "")}
        assert used | asked == {grant(right) for right in RIGHTS if right.purpose == "allocate"} | of_pods
    finally:
        clear(api)
