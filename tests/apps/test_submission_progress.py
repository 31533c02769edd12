"""The state of a live cluster's workload follows its objects and their pods, including pods still to be created."""

from __future__ import annotations

from typing import Any

import pytest

from hetsched.adapters.files import parse_workload
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.journal.audit import SYSTEM
from hetsched.placement.actions import apply_changes, cancel, retry, submit_live
from hetsched.placement.actions.live_submissions import claim_objects, record_attempt
from hetsched.placement.models import Pod, SubmittedObject, Workload
from tests.builders import a_node, a_pod
from tests.builtins import builtin_policies

pytestmark = pytest.mark.django_db
WEB = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: busybox, resources: {requests: {cpu: "1"}}}]}
"""


@pytest.fixture
def cluster() -> Cluster:
    builtin_policies()
    made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=made, follower_epoch=1, enrolled_namespaces=["default"])
    apply_changes(made.pk, Changes(nodes=[a_node("n1").build()]), epoch=1)
    return made


@pytest.fixture
def workload(cluster: Cluster) -> Workload:
    """Return a submitted Deployment of two pods, created in the cluster."""
    pods = parse_workload([("m", WEB.encode())]).pending
    accepted = submit_live(cluster, pods, manifest=WEB.encode(), actor=SYSTEM)
    (submitted_object,) = claim_objects(cluster.pk, 10)
    record_attempt(submitted_object, SubmittedObject.MADE, uid="d1")
    return Workload.objects.get(pk=accepted.workload_id)


def comes(cluster: Cluster, workload: Workload, name: str, **more: Any) -> None:
    """Add a pod of the Deployment, owned by a ReplicaSet."""
    maker = f"ReplicaSet/{workload.objects_there.get().wanted.name}-5d9c"
    spec = a_pod(name).having(
        uid=name, controller=maker, node_name=more.get("node_name", ""), labels={"hetsched.io/workload": workload.pk}
    )
    seen = ObservedPod(
        "default", name, name, scheduler_name="hetsched", spec=None if more.get("ended") else spec.build(), **more
    )
    apply_changes(cluster.pk, Changes(pods=[seen]), epoch=1)


def state(workload: Workload) -> str:
    return Workload.objects.get(pk=workload.pk).state


def test_workload_is_pending_until_all_pods_exist(cluster: Cluster, workload: Workload) -> None:
    assert (workload.pod_count, state(workload)) == (2, "pending")
    comes(cluster, workload, "a")
    comes(cluster, workload, "a", ended="failed", phase="Failed")  # deleted by a user before it had a node
    assert state(workload) == "pending"
    comes(cluster, workload, "b")
    assert (Workload.objects.count(), Pod.objects.filter(workload=workload).count()) == (1, 2)
    comes(cluster, workload, "b", ended="succeeded", phase="Succeeded")
    assert state(workload) == "cancelled"
    comes(cluster, workload, "c")  # one more than requested, created for the first one
    assert Workload.objects.get(pk=workload.pk).pod_count == 3


def test_one_object_is_tried_by_one_worker_at_a_time(cluster: Cluster, workload: Workload) -> None:
    cancel(workload, actor=SYSTEM, reason="enough")
    first, second = claim_objects(cluster.pk, 10), claim_objects(cluster.pk, 10)
    assert (len(first), second) == (1, [])
    record_attempt(first[0], SubmittedObject.UNWANTED, message="503")
    assert claim_objects(cluster.pk, 10) == []  # later
    SubmittedObject.objects.update(not_before=None)
    assert len(claim_objects(cluster.pk, 10)) == 1


def test_object_withdrawn_during_a_try_is_deleted_by_its_uid(cluster: Cluster, workload: Workload) -> None:
    SubmittedObject.objects.update(state=SubmittedObject.WANTED, uid="")
    (submitted_object,) = claim_objects(cluster.pk, 10)
    cancel(workload, actor=SYSTEM, reason="meanwhile")
    assert claim_objects(cluster.pk, 10) == []
    record_attempt(submitted_object, SubmittedObject.MADE, uid="d2")
    (due,) = claim_objects(cluster.pk, 10)
    assert (due.state, due.uid) == ("unwanted", "d2")


def test_failed_object_is_not_created_again(cluster: Cluster, workload: Workload) -> None:
    comes(cluster, workload, "a")
    for reached in ("placed", "failed"):
        Pod.objects.update(state=reached, queued=False)
    with pytest.raises(InputError, match="NothingToRetry"):
        retry(workload, actor=SYSTEM, reason="again")
