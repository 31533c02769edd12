"""`POST workloads/` on a live cluster requests objects there; `DELETE` requests their deletion.

No API server is called here.
"""

from __future__ import annotations

from typing import Any

import pytest

from hetsched.access.tokens import create_token
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import ClusterKind, Connection
from hetsched.journal.audit import SYSTEM
from hetsched.placement import dispatch
from hetsched.placement.models import Pod, SubmittedObject, Workload

from .conftest import POD, Api


@pytest.fixture(autouse=True)
def live(policies: None) -> None:
    made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=made, enrolled_namespaces=["default"])


def submit(operator: Api, manifest: str = POD, address: str = "workloads/", **more: Any) -> Any:
    return operator("POST", address, manifest, kind="application/yaml", **more)


def test_object_names_derive_from_the_key(
    operator: Api, local_messages: Any, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        accepted = submit(operator, status=202, idempotency_key="build-7").json()
    assert (dispatch.CREATE, [Workload.objects.get().cluster_id]) in local_messages
    assert not Pod.objects.exists()  # the watch adds them
    (submitted_object,) = SubmittedObject.objects.all()
    meta = submitted_object.wanted.document["metadata"]
    assert (accepted["state"], accepted["pods"]) == (
        "pending",
        [{"pod": f"default/{meta['name']}", "state": "pending"}],
    )
    assert meta["labels"] == {"hetsched.io/workload": accepted["id"]}
    assert submitted_object.wanted.document["spec"]["schedulerName"] == "hetsched"
    again = submit(operator, status=202, idempotency_key="build-7")
    assert (again["Idempotency-Replayed"], again.json()) == ("true", accepted)
    submit(operator, POD.replace("500m", "501m"), status=422, idempotency_key="build-7")
    submit(operator, status=202, idempotency_key="build-8")
    assert len({row.wanted.name for row in SubmittedObject.objects.all()}) == 2


def test_policy_is_written_as_the_scheduler_name(operator: Api) -> None:
    submit(operator, address="workloads/?policy=binpack", status=202)
    assert SubmittedObject.objects.get().wanted.document["spec"]["schedulerName"] == "hetsched-binpack"


def test_identity_fields_of_an_object_are_left_out(operator: Api) -> None:
    hostile = "{name: web, uid: u, resourceVersion: '7', finalizers: [x/y], ownerReferences: [{kind: Node, name: n1}]}"
    submit(operator, POD.replace("{name: web}", hostile), status=202)
    assert set(SubmittedObject.objects.get().wanted.document["metadata"]) == {
        "name", "namespace", "labels", "annotations",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("manifest", "address", "status", "code"),
    [
        (POD.replace("{name: web}", "{name: web, namespace: rest}"), "workloads/", 403, "NamespaceNotEnrolled"),
        (POD, "workloads/?priority=5", 400, "PriorityInvalid"),
        (POD, "workloads/?policy=none", 400, "PolicyUnknown"),
        (f"{POD}---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: x}}\n", "workloads/", 400, "KindNotSubmitted"),
    ],
)
def test_forbidden_kind_is_rejected(operator: Api, manifest: str, address: str, status: int, code: str) -> None:
    assert submit(operator, manifest, address, status=status).json()["code"] == code
    assert not SubmittedObject.objects.exists()


ELSEWHERE = """\
---
apiVersion: %s
kind: %s
metadata: {name: other, namespace: rest}
spec:
  %s
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec: {containers: [{name: main, image: example.com/x}]}
"""


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        (ELSEWHERE % ("batch/v1", "Job", "suspend: true"), "NamespaceNotAllowed"),
        (ELSEWHERE % ("apps/v1", "Deployment", "replicas: 0"), "NamespaceNotAllowed"),
        (ELSEWHERE % ("apps/v1", "ReplicaSet", "replicas: 0"), "NamespaceNotAllowed"),
        ("---\n" + POD.replace("web}", "b, namespace: rest}") + "status: {phase: Succeeded}\n", "NamespaceNotAllowed"),
        (
            "---\n" + POD.replace("web}", "b, namespace: rest, deletionTimestamp: '2026-01-01T00:00:00Z'}"),
            "NamespaceNotAllowed",
        ),
        (
            "---\n" + POD.replace("web", "b") + "  priorityClassName: system-node-critical\nstatus: {phase: Failed}\n",
            "PriorityNotAllowed",
        ),
    ],
)
def test_limited_token_creates_only_counted_objects(extra: str, code: str) -> None:
    """Regression: objects without pods to place were created unchecked, such as finished pods and empty controllers."""
    Connection.objects.update(enrolled_namespaces=["default", "rest"])
    limited = Api(create_token(role="submitter", name="ci", namespaces=["default"])[1])
    assert submit(limited, POD + extra, status=403).json()["code"] == code
    assert not SubmittedObject.objects.exists()


def test_finished_pods_of_a_manifest_count_in_the_quota() -> None:
    limited = Api(create_token(role="submitter", name="ci", namespaces=["default"], quota={"pods": "1"})[1])
    finished = "---\n" + POD.replace("web", "b") + "status: {phase: Succeeded}\n"
    assert submit(limited, POD + finished, status=403).json()["code"] == "QuotaTooSmall"
    submit(limited, status=202)


def test_finished_pod_on_a_node_is_rejected(operator: Api) -> None:
    finished = "---\n" + POD.replace("web", "b") + "  nodeName: n1\nstatus: {phase: Succeeded}\n"
    assert submit(operator, POD + finished, status=400).json()["code"] == "PodBound"


def test_withdrawn_workload_is_pending_until_its_objects_are_deleted(operator: Api) -> None:
    made = submit(operator, status=202).json()["id"]
    (shown,) = operator.get(f"workloads/{made}/")["objects"]
    assert (shown["kind"], shown["state"]) == ("Pod", "wanted")
    gone = operator("DELETE", f"workloads/{made}/?reason=done", status=200).json()
    assert gone["state"] == "pending"
    assert (gone["objects"][0]["state"], gone["objects"][0]["message"]) == ("unwanted", "done")
