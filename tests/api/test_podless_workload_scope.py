"""Visibility of a live submission before the watch reports its pods: it follows the scope of its objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hetsched.access.subject import Subject
from hetsched.access.tokens import create_token
from hetsched.adapters.files import parse_workload
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import ClusterKind, Connection
from hetsched.journal.audit import SYSTEM
from hetsched.placement.actions import submit_live
from hetsched.placement.models import Pod, SubmittedObject
from web.live import rights, socket_reads

from .conftest import Api

JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: %s}
spec:
  template:
    spec: {restartPolicy: Never, containers: [{name: main, image: busybox, resources: {requests: {cpu: "1"}}}]}
"""


@pytest.fixture
def submitted(policies: None) -> Callable[..., str]:
    live = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=live, follower_epoch=1, enrolled_namespaces=["rest", "team", "third"])

    def submit(*namespaces: str) -> str:
        manifest = "---\n".join(JOB % name for name in namespaces)
        pods = parse_workload([("m", manifest.encode())]).pending
        return submit_live(live, pods, manifest=manifest.encode(), actor=SYSTEM).workload_id

    return submit


def may_subscribe(token: str, workload_id: str) -> bool:
    from hetsched.access.tokens import resolve

    found, known = socket_reads.find(f"workload:{workload_id}"), resolve(token)
    assert known is not None
    return rights.denial_of(Subject(known.user, known), found.topic, found.namespaces) is None


@pytest.mark.parametrize(
    ("namespaces", "seen"), [(["rest"], False), (["rest", "third"], False), (["rest", "team"], False), (["team"], True)]
)
def test_limited_token_sees_workloads_of_its_namespaces(
    submitted: Callable[..., str], namespaces: list[str], seen: bool
) -> None:
    made = submitted(*namespaces)
    assert not Pod.objects.exists()
    token = create_token(role="operator", name="t", namespaces=["team"])[1]
    caller = Api(token)
    assert caller("GET", f"workloads/{made}/").status_code == (200 if seen else 404)
    assert [row["id"] for row in caller.get("workloads/")["items"]] == ([made] if seen else [])
    assert may_subscribe(token, made) is seen


def test_limited_token_cannot_cancel_a_foreign_workload(submitted: Callable[..., str], api: Callable[..., Api]) -> None:
    made = submitted("rest", "third")
    api("submitter", "team")("DELETE", f"workloads/{made}/", status=404)
    assert not SubmittedObject.objects.filter(state=SubmittedObject.UNWANTED).exists()


def test_token_with_access_to_all_objects_has_the_workload(
    submitted: Callable[..., str], api: Callable[..., Api]
) -> None:
    made = submitted("rest", "third")
    answer: Any = api("submitter", "rest", "third")("DELETE", f"workloads/{made}/")
    assert answer.status_code == 200
