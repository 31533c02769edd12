"""Objects that arrive one by one in any order give the same content as one file with all of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hetsched.adapters.kubernetes.informer_store import InformerStore
from hetsched.adapters.kubernetes.reflector import Deleted, Upserted
from hetsched.adapters.kubernetes.resources import (
    CLAIMS,
    CSI_NODES,
    NATIVE_GROUPS,
    NODE_GPUS,
    NODES,
    POD_GROUPS,
    PODS,
    PRIORITY_CLASSES,
)
from hetsched.contracts.objects.observed import Changes
from hetsched.contracts.objects.wishes import GROUP_MIN_COUNT
from hetsched.contracts.objects.workload import GangMember


def seen(mirror: InformerStore, resource: Any, name: str, **fields: Any) -> None:
    meta = {"name": name.rpartition("/")[2], **fields.pop("metadata", {})}
    if "/" in name:
        meta["namespace"] = name.partition("/")[0]
    plain = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, **fields}
    mirror.feed(resource, Upserted(name, json.dumps(plain).encode()))


def a_node(mirror: InformerStore, name: str = "n1", cpu: str = "8") -> None:
    seen(mirror, NODES, name, status={"allocatable": {"cpu": cpu, "memory": "32Gi", "pods": "110"}})


def a_pod(mirror: InformerStore, name: str = "team/p", **spec: Any) -> None:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "1"}}}
    seen(mirror, PODS, name, spec={"containers": [container], "schedulerName": "hetsched", **spec})


def taken(mirror: InformerStore) -> Changes:
    changes = mirror.take()
    assert not mirror.take()
    return changes


def test_node_is_joined_with_its_descriptions_in_any_order() -> None:
    mirror = InformerStore()
    seen(mirror, NODE_GPUS, "n1", spec={"cards": [{"index": 0, "model": "A100-SXM4-40GB", "memoryMiB": 40960}]})
    a_node(mirror)
    (report,) = taken(mirror).nodes
    assert report.gpus is not None
    assert report.gpus[0].memory_mib == 40960
    mirror.feed(NODE_GPUS, Deleted("n1"))
    (report,) = taken(mirror).nodes
    assert report.gpus is None


def test_malformed_node_is_quarantined_until_it_changes() -> None:
    mirror = InformerStore()
    a_node(mirror)
    seen(mirror, NODE_GPUS, "n1", spec={"cards": [{"index": -3}]})
    (report,) = taken(mirror).nodes
    assert report.gpus is None
    assert "nodegpus" in report.problems[0]
    assert list(mirror.quarantined) == [("nodegpus", "n1")]
    seen(mirror, NODE_GPUS, "n1", spec={"cards": [{"index": 0}]})
    (report,) = taken(mirror).nodes
    assert report.gpus is not None
    assert not mirror.quarantined


def test_malformed_node_or_pod_does_not_affect_others() -> None:
    mirror = InformerStore()
    a_node(mirror, "odd", cpu="many")
    a_node(mirror, "good")
    a_pod(mirror, "team/odd", nodeSelector="x")
    a_pod(mirror, "team/good")
    changes = taken(mirror)
    assert [report.name for report in changes.nodes] == ["good"]
    assert [pod.key for pod in changes.pods] == ["team/good"]
    assert set(mirror.quarantined) == {("nodes", "odd"), ("pods", "team/odd")}


def test_deleted_malformed_pod_leaves_the_quarantine() -> None:
    mirror = InformerStore()
    a_pod(mirror, "team/odd", nodeSelector="x")
    mirror.feed(PODS, Deleted("team/odd", b'{"metadata": 7}'))
    assert taken(mirror).pods_gone == ["team/odd"]
    assert not mirror.quarantined


def test_a_pod_is_read_again_when_the_class_it_names_appears() -> None:
    mirror = InformerStore()
    a_pod(mirror, priorityClassName="urgent")
    (pod,) = taken(mirror).pods
    assert pod.spec is not None
    assert pod.spec.problems
    seen(mirror, PRIORITY_CLASSES, "urgent", value=1000)
    changes = taken(mirror)
    assert changes.definitions is not None
    assert [(pod.spec and pod.spec.priority, pod.spec and pod.spec.problems) for pod in changes.pods] == [(1000, ())]


def test_malformed_definition_does_not_affect_others() -> None:
    mirror = InformerStore()
    seen(mirror, POD_GROUPS, "team/bad", spec={"minMember": "three"})
    seen(mirror, POD_GROUPS, "team/good", spec={"minMember": 3})
    definitions = taken(mirror).definitions
    assert definitions is not None
    assert definitions.pod_groups["team/good"].min_member == 3
    assert list(mirror.quarantined) == [("podgroups", "team/bad")]


def test_pod_status_changes_are_reported() -> None:
    mirror = InformerStore()
    ended = {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    seen(
        mirror, PODS, "team/p", metadata={"uid": "u1"},
        spec={"containers": [{"name": "main", "image": "x"}], "nodeName": "n1", "schedulerName": "hetsched"},
        status={"phase": "Failed", "containerStatuses": [ended]},
    )  # fmt: skip
    (pod,) = taken(mirror).pods
    assert (pod.uid, pod.ended, pod.node_name, pod.spec) == ("u1", "failed", "n1", None)
    assert pod.end is not None
    assert (pod.end.container, pod.end.exit_code, pod.end.reason) == ("main", 137, "OOMKilled")
    mirror.feed(PODS, Deleted("team/p"))
    assert taken(mirror).pods_gone == ["team/p"]


TAKEN = {"phase": "Pending", "startTime": "2026-01-01T00:00:00Z"}
ENDED: dict[str, Any] = {"state": {"terminated": {"exitCode": 0}}}


@pytest.mark.parametrize(
    ("status", "stopped"),
    [
        ({"phase": "Pending"}, True),  # no kubelet accepted it
        ({"phase": "Succeeded"}, True),
        ({**TAKEN, "phase": "Failed"}, True),
        ({"phase": "Running", "containerStatuses": [ENDED]}, True),
        ({"phase": "Running", "containerStatuses": [ENDED, {"state": {"running": {}}}]}, False),
        ({"phase": "Running"}, False),
        (TAKEN, False),  # its containers may be starting
        ({**TAKEN, "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, False),
        (
            {"phase": "Running", "containerStatuses": [ENDED], "initContainerStatuses": [{"state": {"running": {}}}]},
            False,  # a sidecar runs
        ),
    ],
)
def test_deleted_pod_that_never_ran_is_stopped(status: dict[str, Any], stopped: bool) -> None:
    mirror = InformerStore()
    body = {"metadata": {"name": "p", "uid": "u1"}, "spec": {"nodeName": "n1"}, "status": status}
    mirror.feed(PODS, Deleted("team/p", json.dumps(body).encode()))
    assert taken(mirror).stopped == ({"u1"} if stopped else set())
    mirror.feed(PODS, Deleted("team/q"))
    assert taken(mirror).stopped == set()  # the state of a pod that is only missing is unknown


def test_a_heartbeat_is_no_change() -> None:
    mirror = InformerStore()
    a_node(mirror)
    taken(mirror)
    a_node(mirror)
    assert not mirror.take()


def test_pod_is_parsed_again_when_its_group_arrives() -> None:
    mirror = InformerStore()
    a_pod(mirror, schedulingGroup={"podGroupName": "ring"})
    (pod,) = taken(mirror).pods
    assert pod.spec is not None
    assert pod.spec.gang == GangMember("ring", 0)
    seen(mirror, NATIVE_GROUPS, "team/ring", spec={"schedulingPolicy": {"gang": {"minCount": 4}}})
    (pod,) = taken(mirror).pods
    assert pod.spec is not None
    assert pod.spec.gang == GangMember("ring", 4, min_field=GROUP_MIN_COUNT)


def test_pod_with_its_group_has_the_minimum_members() -> None:
    mirror = InformerStore()
    seen(mirror, NATIVE_GROUPS, "team/ring", spec={"schedulingPolicy": {"gang": {"minCount": 4}}})
    a_pod(mirror, schedulingGroup={"podGroupName": "ring"})
    (pod,) = taken(mirror).pods
    assert pod.spec is not None
    assert pod.spec.gang == GangMember("ring", 4, min_field=GROUP_MIN_COUNT)


def test_an_odd_claim_leaves_the_others() -> None:
    mirror = InformerStore()
    seen(mirror, CLAIMS, "team/odd", spec={"volumeMode": "Tape"})
    seen(mirror, CLAIMS, "team/good", spec={}, status={"phase": "Pending"})
    definitions = taken(mirror).definitions
    assert definitions is not None
    assert list(definitions.storage.claims) == ["team/good"]
    assert list(mirror.quarantined) == [("persistentvolumeclaims", "team/odd")]


def test_attach_limits_are_a_nodes_own() -> None:
    mirror = InformerStore()
    seen(mirror, CSI_NODES, "n1", spec={"drivers": [{"name": "csi.io", "allocatable": {"count": 9}}]})
    a_node(mirror)
    (report,) = taken(mirror).nodes
    assert report.attach_limits == {"csi.io": 9}


def test_skipped_event_has_no_effect_until_it_is_replayed() -> None:
    mirror = InformerStore()
    a_pod(mirror)
    taken(mirror)
    container = {"name": "main", "image": "x"}
    bound = Upserted("team/p", json.dumps({"metadata": {"name": "p", "namespace": "team", "uid": "u1"}, "spec": {
        "containers": [container], "nodeName": "n1", "schedulerName": "hetsched"}}).encode())  # fmt: skip
    mirror.pass_over(bound)
    assert not mirror.take()
    mirror.feed_late(bound)
    (pod,) = taken(mirror).pods
    assert pod.node_name == "n1"
    mirror.feed(PODS, Deleted("team/p"))
    mirror.feed_late(bound)  # the later change stays
    assert taken(mirror).pods_gone == ["team/p"]


def bound_pod(labels: dict[str, str], node: str = "n1", **annotations: str) -> Upserted:
    meta = {"name": "p", "namespace": "team", "uid": "u1", "labels": labels, "annotations": annotations}
    spec = {"containers": [{"name": "main", "image": "x"}], "schedulerName": "hetsched"}
    return Upserted(
        "team/p", json.dumps({"metadata": meta, "spec": spec | ({"nodeName": node} if node else {})}).encode()
    )


def test_binding_only_update_is_distinguished_from_others() -> None:
    mirror = InformerStore()
    mirror.feed(PODS, bound_pod({"x": "1"}, "", owner="a"))
    assert not mirror.only_binds(bound_pod({"x": "1"}, owner="a"))  # its creation was not taken yet
    taken(mirror)
    assert mirror.only_binds(bound_pod({"x": "1"}, owner="a", **{"hetsched.io/allocation": "{}"}))
    for other in (bound_pod({"x": "2"}, owner="a"), bound_pod({"x": "1"}, owner="b"), bound_pod({"x": "1"})):
        assert not mirror.only_binds(other)
    assert not mirror.only_binds(Upserted("team/p", b"[]"))
    mirror.feed(PODS, bound_pod({"x": "2"}, "", owner="a"))
    assert not mirror.only_binds(bound_pod({"x": "2"}, owner="a"))  # the label was not taken yet
    taken(mirror)
    assert mirror.only_binds(bound_pod({"x": "2"}, owner="a"))
    mirror.pass_over(bound_pod({"x": "2"}, owner="a"))
    assert not mirror.only_binds(bound_pod({"x": "2"}, owner="a"))


def booted(mirror: InformerStore, boot: str, name: str = "n1") -> set[str]:
    """Report a node and its boot ID; return the nodes that are reported as rebooted."""
    status = {"allocatable": {"cpu": "8", "pods": "110"}, "nodeInfo": {"bootID": boot}}
    seen(mirror, NODES, name, status=status)
    return mirror.take().rebooted


def test_another_boot_of_a_node_is_noticed_once() -> None:
    mirror = InformerStore()
    assert [booted(mirror, boot) for boot in ("a", "a", "b", "b", "", "b")] == [
        set(),
        set(),
        {"n1"},
        set(),
        set(),
        set(),
    ]
    assert booted(mirror, "c", "n2") == set()
    seen(mirror, NODES, "n1", status={"nodeInfo": {"bootID": 7}})
    assert mirror.take().rebooted == set()


@pytest.mark.parametrize(
    ("meta", "spec", "seconds"),
    [
        ({}, {}, 30),
        ({}, {"terminationGracePeriodSeconds": 5}, 5),
        ({}, {"terminationGracePeriodSeconds": 0}, 0),
        ({}, {"terminationGracePeriodSeconds": -1}, 1),
        ({"deletionGracePeriodSeconds": 90, "deletionTimestamp": "2026-11-20T10:00:00Z"}, {}, 90),
    ],
)
def test_grace_period_is_that_of_the_deletion_else_of_the_pod(meta: Any, spec: Any, seconds: int) -> None:
    mirror = InformerStore()
    container = {"name": "main", "image": "x"}
    seen(mirror, PODS, "team/p", metadata=meta, spec={"containers": [container], "nodeName": "n1", **spec})
    (pod,) = mirror.take().pods
    assert pod.spec is not None
    assert pod.spec.grace_seconds == seconds
