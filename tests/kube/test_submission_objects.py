"""A submission's objects are created once on a real API server, despite lost responses, and deleted on request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hetsched.adapters.files import parse_workload
from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.connections.access_review import JOBS
from hetsched.adapters.kubernetes.resources import PODS
from hetsched.contracts.errors import InputError
from hetsched.inventory.models import Cluster, Connection, Node
from hetsched.journal.audit import SYSTEM
from hetsched.placement.actions import Submission, begin_binding, cancel, submit_live
from hetsched.placement.models import Pod, SubmittedObject, Workload
from hetsched.scheduling.informer import Informer
from tests.kube.kubelet import Kubelet, ends
from tests.kube.scene import an_informer, eventually, make_node, make_pod
from tests.situations import placing, recorded
from workers import create

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
CONTAINERS = "containers: [{name: main, image: busybox, resources: {requests: {cpu: 100m, memory: 16Mi}}}]"
POD = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: hello, namespace: default}}\nspec: {{{CONTAINERS}}}\n"
JOB = (
    "apiVersion: batch/v1\nkind: Job\nmetadata: {name: sums, namespace: default}\n"
    f"spec: {{template: {{spec: {{restartPolicy: Never, {CONTAINERS}}}}}}}\n"
)


@pytest.fixture
def there(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    """Run an informer for a cluster with one node, in which submissions may use the namespace default."""
    monkeypatch.setattr(create, "api_of", lambda _: api)
    Connection.objects.filter(cluster=cluster).update(enrolled_namespaces=["default"])
    make_node(api, "n1")
    follower = an_informer(api, cluster)
    eventually(follower, lambda: Node.objects.count() == 1)
    yield follower
    follower.ended.set()
    # No controller here removes the finalizer that the default would set.
    api.send("DELETE", JOBS.path(namespace="default"), query={"propagationPolicy": "Background"})


def submitted(cluster: Cluster, manifest: str = POD, **more: Any) -> Submission:
    pods = parse_workload([("manifest", manifest.encode())]).pending
    return submit_live(cluster, pods, manifest=manifest.encode(), actor=SYSTEM, **more)


def names(api: Api, resource: Any = PODS) -> list[str]:
    return [json.loads(item)["metadata"]["name"] for item in api.list_all(resource)[0]]


def objects() -> list[str]:
    return list(SubmittedObject.objects.order_by("id").values_list("state", flat=True))


def test_pod_is_created_once_and_matched_to_its_workload(api: Api, cluster: Cluster, there: Informer) -> None:
    accepted = submitted(cluster, owner="me", idempotency_key="k1")
    assert names(api) == []
    assert create.run(cluster.pk) == 1
    (name,) = names(api)
    assert name.startswith("hello-")
    assert accepted.response["pods"] == [{"pod": f"default/{name}", "state": "pending"}]
    eventually(there, Pod.objects.exists)
    pod = Pod.objects.get()
    assert (pod.name, pod.workload_id, pod.state) == (name, accepted.workload_id, "pending")
    assert Workload.objects.count() == 1
    again = submitted(cluster, owner="me", idempotency_key="k1")
    assert (again.replayed, again.workload_id) == (True, accepted.workload_id)
    assert create.run(cluster.pk) == 0
    assert names(api) == [name]


def test_created_object_with_a_lost_response_is_recognised(api: Api, cluster: Cluster, there: Informer) -> None:
    submitted(cluster)
    send = api.send

    def lost(method: str, *words: Any, **more: Any) -> bytes:
        answer = send(method, *words, **more)
        if method == "POST":
            raise ApiFailure(0, "Unreachable", "the answer was lost")
        return answer

    api.send = lost  # type: ignore[method-assign]
    assert create.run(cluster.pk) == 0
    api.send = send  # type: ignore[method-assign]
    assert objects() == ["wanted"]
    assert create.run(cluster.pk) == 0  # not yet: it backs off
    SubmittedObject.objects.update(not_before=None)
    assert create.run(cluster.pk) == 1
    assert (objects(), len(names(api))) == (["made"], 1)
    assert SubmittedObject.objects.get().uid


def test_withdrawn_workload_deletes_only_its_own_pods(api: Api, cluster: Cluster, there: Informer) -> None:
    accepted = submitted(cluster)
    make_pod(api, "foreign")
    create.run(cluster.pk)
    eventually(there, lambda: Pod.objects.count() == 2)
    workload = cancel(Workload.objects.get(pk=accepted.workload_id), actor=SYSTEM, reason="not needed")
    assert workload.state == "pending"  # until its deletion is seen
    assert create.run(cluster.pk) == 1
    assert (objects(), names(api)) == (["gone"], ["foreign"])
    eventually(there, lambda: Workload.objects.get(pk=accepted.workload_id).state == "cancelled")
    foreign = Pod.objects.get(name="foreign").workload
    assert foreign is not None
    with pytest.raises(InputError, match="WorkloadNotOurs"):
        cancel(foreign, actor=SYSTEM, reason="not ours")


def test_object_withdrawn_before_its_creation_is_never_created(api: Api, cluster: Cluster, there: Informer) -> None:
    accepted = submitted(cluster)
    cancel(Workload.objects.get(pk=accepted.workload_id), actor=SYSTEM, reason="too late")
    create.run(cluster.pk)
    assert (objects(), names(api)) == (["gone"], [])
    assert Workload.objects.get(pk=accepted.workload_id).state == "cancelled"


def test_rejection_is_reported_on_the_workload(api: Api, cluster: Cluster, there: Informer) -> None:
    accepted = submitted(cluster, POD.replace("spec: {", "spec: {restartPolicy: Sometimes, "))
    create.run(cluster.pk)
    assert objects() == ["refused"]
    assert "restartPolicy" in SubmittedObject.objects.get().message
    assert Workload.objects.get(pk=accepted.workload_id).state == "misconfigured"


def test_pods_of_a_job_are_matched_by_owner_not_label(api: Api, cluster: Cluster, there: Informer) -> None:
    accepted = submitted(cluster, JOB)
    create.run(cluster.pk)
    (job,) = names(api, JOBS)
    body = json.loads(api.get(JOBS.path(namespace="default", name=job)))
    assert body["spec"]["template"]["spec"]["schedulerName"] == "hetsched"
    labels = body["spec"]["template"]["metadata"]["labels"]
    assert labels["hetsched.io/workload"] == accepted.workload_id
    # No controller runs here; these are the pods that it would create, and one of another owner.
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": body["metadata"]["uid"], "controller": True}
    spec = {"containers": [{"name": "main", "image": "busybox"}], "schedulerName": "hetsched"}
    for name, owners in ((f"{job}-x7k2p", [owner]), ("stranger", [])):
        meta = {"name": name, "labels": labels, "ownerReferences": owners}
        plain = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        api.send("POST", PODS.path(namespace="default"), json.dumps(plain).encode())
    eventually(there, lambda: Pod.objects.count() == 2)
    mine = Pod.objects.get(name=f"{job}-x7k2p").workload_id
    assert (mine, Pod.objects.get(name="stranger").workload_id == mine) == (accepted.workload_id, False)


def job_pod(api: Api, job: str, uid: str, labels: dict[str, str], name: str) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid, "controller": True}
    spec = {"containers": [{"name": "main", "image": "busybox"}], "schedulerName": "hetsched"}
    plain = {"metadata": {"name": name, "labels": labels, "ownerReferences": [owner]}, "spec": spec}
    api.send("POST", PODS.path(namespace="default"), json.dumps(plain).encode())


def says(api: Api, job: str, kind: str, reason: str) -> None:
    """Set the conditions of a Job as its controller would; the API server requires the full sequence."""
    now = "2026-11-21T10:00:00Z"
    first = {"Complete": "SuccessCriteriaMet", "Failed": "FailureTarget"}[kind]
    conditions = [
        {"type": step, "status": "True", "reason": reason, "message": "told by a test", "lastTransitionTime": now}
        for step in (first, kind)
    ]
    over = {"completionTime": now, "succeeded": 1} if kind == "Complete" else {"failed": 2}
    status = {"startTime": now, "conditions": conditions, "uncountedTerminatedPods": {}, **over}
    path = JOBS.path(namespace="default", name=job, part="status")
    api.send("PATCH", path, json.dumps({"status": status}).encode(), content="application/merge-patch+json")


@pytest.mark.parametrize(
    ("kind", "reason", "state", "message"),
    [
        ("Complete", "CompletionsReached", "succeeded", ""),
        ("Failed", "BackoffLimitExceeded", "failed", "BackoffLimitExceeded: told by a test"),
    ],
)
def test_job_result_follows_its_conditions(
    api: Api, cluster: Cluster, there: Informer, kind: str, reason: str, state: str, message: str
) -> None:
    accepted = submitted(cluster, JOB)
    create.run(cluster.pk)
    (job,) = names(api, JOBS)
    body = json.loads(api.get(JOBS.path(namespace="default", name=job)))
    labels, uid = body["spec"]["template"]["metadata"]["labels"], body["metadata"]["uid"]

    def workload() -> Workload:
        return Workload.objects.get(pk=accepted.workload_id)

    for name, code in ((f"{job}-first", 1), (f"{job}-again", int(kind == "Failed"))):
        job_pod(api, job, uid, labels, name)
        eventually(there, lambda name=name: Pod.objects.filter(name=name).exists())  # type: ignore[misc]
        recorded(cluster, placing(cluster, "n1"))
        pod = Pod.objects.get(name=name)
        begin_binding(cluster.pk, [pod.pk])
        target = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}}
        api.send("POST", PODS.path(namespace="default", name=name, part="binding"), json.dumps(target).encode())
        with Kubelet(api, lambda _, code=code: ends(code)):  # type: ignore[misc]
            eventually(there, lambda pk=pod.pk: Pod.objects.get(pk=pk).finished_at is not None)  # type: ignore[misc]
        assert create.run(cluster.pk) == 0
        assert (objects(), workload().state) == (["ending"], "running")
        SubmittedObject.objects.update(not_before=None)
    says(api, job, kind, reason)
    assert create.run(cluster.pk) == 1
    assert (objects(), SubmittedObject.objects.get().message) == ([state], message)
    assert workload().state == state


@pytest.mark.parametrize(
    ("manifest", "code"),
    [
        (POD.replace("namespace: default", "namespace: kube-system"), "NamespaceNotEnrolled"),
        (POD + "---\napiVersion: v1\nkind: Secret\nmetadata: {name: x}\n", "KindNotSubmitted"),
    ],
)
def test_only_pods_and_controllers_are_created_in_enrolled_namespaces(
    cluster: Cluster, there: Informer, manifest: str, code: str
) -> None:
    with pytest.raises(InputError, match=code):
        submit_live(cluster, parse_workload([("m", POD.encode())]).pending, manifest=manifest.encode(), actor=SYSTEM)
    assert not Workload.objects.exists()
