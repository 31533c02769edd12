"""Objects that arrive one by one in any order give the same content as one file with all of them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from hetsched.adapters.kubernetes import informer_store
from hetsched.adapters.kubernetes.informer_store import InformerStore
from hetsched.adapters.kubernetes.reflector import Deleted, Upserted
from hetsched.adapters.kubernetes.resources import (
    CLAIMS,
    CSI_NODES,
    DEVICE_CLASSES,
    NATIVE_GROUPS,
    NODE_GPUS,
    NODES,
    POD_GROUPS,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from hetsched.adapters.objects.manifests import read_content
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.devices import DevicePlace
from hetsched.contracts.objects.observed import Changes
from hetsched.contracts.objects.wishes import GROUP_MIN_COUNT
from hetsched.contracts.objects.workload import GangMember


def seen(store: InformerStore, resource: Any, name: str, **fields: Any) -> None:
    meta = {"name": name.rpartition("/")[2], **fields.pop("metadata", {})}
    if "/" in name:
        meta["namespace"] = name.partition("/")[0]
    plain = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, **fields}
    store.feed(resource, Upserted(name, json.dumps(plain).encode()))


def a_node(store: InformerStore, name: str = "n1", cpu: str = "8") -> None:
    seen(store, NODES, name, status={"allocatable": {"cpu": cpu, "memory": "32Gi", "pods": "110"}})


def a_pod(store: InformerStore, name: str = "team/p", **spec: Any) -> None:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "1"}}}
    seen(store, PODS, name, spec={"containers": [container], "schedulerName": "hetsched", **spec})


def taken(store: InformerStore) -> Changes:
    changes = store.take()
    assert not store.take()
    return changes


def test_node_is_joined_with_its_descriptions_in_any_order() -> None:
    store = InformerStore()
    seen(store, NODE_GPUS, "n1", spec={"cards": [{"index": 0, "model": "A100-SXM4-40GB", "memoryMiB": 40960}]})
    a_node(store)
    (report,) = taken(store).nodes
    assert report.gpus is not None
    assert report.gpus[0].memory_mib == 40960
    store.feed(NODE_GPUS, Deleted("n1"))
    (report,) = taken(store).nodes
    assert report.gpus is None


def test_malformed_node_is_quarantined_until_it_changes() -> None:
    store = InformerStore()
    a_node(store)
    seen(store, NODE_GPUS, "n1", spec={"cards": [{"index": -3}]})
    (report,) = taken(store).nodes
    assert report.gpus is None
    assert "nodegpus" in report.problems[0]
    assert list(store.quarantined) == [("nodegpus", "n1")]
    seen(store, NODE_GPUS, "n1", spec={"cards": [{"index": 0}]})
    (report,) = taken(store).nodes
    assert report.gpus is not None
    assert not store.quarantined


def test_malformed_node_or_pod_does_not_affect_others() -> None:
    store = InformerStore()
    a_node(store, "odd", cpu="many")
    a_node(store, "good")
    a_pod(store, "team/odd", nodeSelector="x")
    a_pod(store, "team/good")
    changes = taken(store)
    assert [report.name for report in changes.nodes] == ["good"]
    assert [pod.key for pod in changes.pods] == ["team/good"]
    assert set(store.quarantined) == {("nodes", "odd"), ("pods", "team/odd")}


def test_malformed_node_does_not_affect_other_batches_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer_store, "_NODES_AT_ONCE", 2)
    store = InformerStore()
    for number in range(5):
        a_node(store, f"n{number}", cpu="many" if number == 2 else "8")
    assert [report.name for report in taken(store).nodes] == ["n0", "n1", "n3", "n4"]
    assert set(store.quarantined) == {("nodes", "n2")}


def test_deleted_malformed_pod_leaves_the_quarantine() -> None:
    store = InformerStore()
    a_pod(store, "team/odd", nodeSelector="x")
    store.feed(PODS, Deleted("team/odd", b'{"metadata": 7}'))
    assert taken(store).pods_gone == ["team/odd"]
    assert not store.quarantined


def test_pod_is_parsed_again_when_its_class_arrives() -> None:
    store = InformerStore()
    a_pod(store, priorityClassName="urgent")
    (pod,) = taken(store).pods
    assert pod.spec is not None
    assert pod.spec.problems
    seen(store, PRIORITY_CLASSES, "urgent", value=1000)
    changes = taken(store)
    assert changes.definitions is not None
    assert [(pod.spec and pod.spec.priority, pod.spec and pod.spec.problems) for pod in changes.pods] == [(1000, ())]


def test_malformed_definition_does_not_affect_others() -> None:
    store = InformerStore()
    seen(store, POD_GROUPS, "team/bad", spec={"minMember": "three"})
    seen(store, POD_GROUPS, "team/good", spec={"minMember": 3})
    definitions = taken(store).definitions
    assert definitions is not None
    assert definitions.pod_groups["team/good"].min_member == 3
    assert list(store.quarantined) == [("podgroups", "team/bad")]


def test_pod_status_changes_are_reported() -> None:
    store = InformerStore()
    ended = {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    seen(
        store, PODS, "team/p", metadata={"uid": "u1"},
        spec={"containers": [{"name": "main", "image": "x"}], "nodeName": "n1", "schedulerName": "hetsched"},
        status={"phase": "Failed", "containerStatuses": [ended]},
    )  # fmt: skip
    (pod,) = taken(store).pods
    assert (pod.uid, pod.ended, pod.node_name, pod.spec) == ("u1", "failed", "n1", None)
    assert pod.end is not None
    assert (pod.end.container, pod.end.exit_code, pod.end.reason) == ("main", 137, "OOMKilled")
    store.feed(PODS, Deleted("team/p"))
    assert taken(store).pods_gone == ["team/p"]


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
    store = InformerStore()
    body = {"metadata": {"name": "p", "uid": "u1"}, "spec": {"nodeName": "n1"}, "status": status}
    store.feed(PODS, Deleted("team/p", json.dumps(body).encode()))
    assert taken(store).stopped == ({"u1"} if stopped else set())
    store.feed(PODS, Deleted("team/q"))
    assert taken(store).stopped == set()  # the state of a pod that is only missing is unknown


def test_heartbeat_is_no_change() -> None:
    store = InformerStore()
    a_node(store)
    taken(store)
    a_node(store)
    assert not store.take()


def test_pod_is_parsed_again_when_its_group_arrives() -> None:
    store = InformerStore()
    a_pod(store, schedulingGroup={"podGroupName": "ring"})
    (pod,) = taken(store).pods
    assert pod.spec is not None
    assert pod.spec.gang == GangMember("ring", 0)
    seen(store, NATIVE_GROUPS, "team/ring", spec={"schedulingPolicy": {"gang": {"minCount": 4}}})
    (pod,) = taken(store).pods
    assert pod.spec is not None
    assert pod.spec.gang == GangMember("ring", 4, min_field=GROUP_MIN_COUNT, disruption_mode="Single")


def test_pod_with_its_group_has_the_minimum_members() -> None:
    store = InformerStore()
    seen(store, NATIVE_GROUPS, "team/ring", spec={"schedulingPolicy": {"gang": {"minCount": 4}}})
    a_pod(store, schedulingGroup={"podGroupName": "ring"})
    (pod,) = taken(store).pods
    assert pod.spec is not None
    assert pod.spec.gang == GangMember("ring", 4, min_field=GROUP_MIN_COUNT, disruption_mode="Single")


def test_malformed_claim_does_not_affect_others() -> None:
    store = InformerStore()
    seen(store, CLAIMS, "team/odd", spec={"volumeMode": "Tape"})
    seen(store, CLAIMS, "team/good", spec={}, status={"phase": "Pending"})
    definitions = taken(store).definitions
    assert definitions is not None
    assert list(definitions.storage.claims) == ["team/good"]
    assert list(store.quarantined) == [("persistentvolumeclaims", "team/odd")]


def test_attach_limits_are_a_nodes_own() -> None:
    store = InformerStore()
    seen(store, CSI_NODES, "n1", spec={"drivers": [{"name": "csi.io", "allocatable": {"count": 9}}]})
    a_node(store)
    (report,) = taken(store).nodes
    assert report.attach_limits == {"csi.io": 9}


def test_skipped_event_has_no_effect_until_it_is_replayed() -> None:
    store = InformerStore()
    a_pod(store)
    taken(store)
    container = {"name": "main", "image": "x"}
    bound = Upserted("team/p", json.dumps({"metadata": {"name": "p", "namespace": "team", "uid": "u1"}, "spec": {
        "containers": [container], "nodeName": "n1", "schedulerName": "hetsched"}}).encode())  # fmt: skip
    store.skip(bound)
    assert not store.take()
    store.feed_skipped(bound)
    (pod,) = taken(store).pods
    assert pod.node_name == "n1"
    store.feed(PODS, Deleted("team/p"))
    store.feed_skipped(bound)  # the later change stays
    assert taken(store).pods_gone == ["team/p"]


def bound_pod(labels: dict[str, str], node: str = "n1", **annotations: str) -> Upserted:
    meta = {"name": "p", "namespace": "team", "uid": "u1", "labels": labels, "annotations": annotations}
    spec = {"containers": [{"name": "main", "image": "x"}], "schedulerName": "hetsched"}
    return Upserted(
        "team/p", json.dumps({"metadata": meta, "spec": spec | ({"nodeName": node} if node else {})}).encode()
    )


def test_binding_only_update_is_distinguished_from_others() -> None:
    store = InformerStore()
    store.feed(PODS, bound_pod({"x": "1"}, "", owner="a"))
    assert not store.only_binds(bound_pod({"x": "1"}, owner="a"))  # its creation was not taken yet
    taken(store)
    assert store.only_binds(bound_pod({"x": "1"}, owner="a", **{"hetsched.io/allocation": "{}"}))
    # The API server copies these labels from the node.
    copied = {"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1"}
    assert store.only_binds(bound_pod({"x": "1", **copied}, owner="a"))
    for other in (bound_pod({"x": "2"}, owner="a"), bound_pod({"x": "1"}, owner="b"), bound_pod({"x": "1"})):
        assert not store.only_binds(other)
    assert not store.only_binds(Upserted("team/p", b"[]"))
    store.feed(PODS, bound_pod({"x": "2"}, "", owner="a"))
    assert not store.only_binds(bound_pod({"x": "2"}, owner="a"))  # the label was not taken yet
    taken(store)
    assert store.only_binds(bound_pod({"x": "2"}, owner="a"))
    store.skip(bound_pod({"x": "2"}, owner="a"))
    assert not store.only_binds(bound_pod({"x": "2"}, owner="a"))


def report_boot(store: InformerStore, boot: str, name: str = "n1") -> set[str]:
    """Report a node and its boot ID; return the nodes that are reported as rebooted."""
    status = {"allocatable": {"cpu": "8", "pods": "110"}, "nodeInfo": {"bootID": boot}}
    seen(store, NODES, name, status=status)
    return store.take().rebooted


def test_reboot_of_a_node_is_reported_once() -> None:
    store = InformerStore()
    assert [report_boot(store, boot) for boot in ("a", "a", "b", "b", "", "b")] == [
        set(),
        set(),
        {"n1"},
        set(),
        set(),
        set(),
    ]
    assert report_boot(store, "c", "n2") == set()
    seen(store, NODES, "n1", status={"nodeInfo": {"bootID": 7}})
    assert store.take().rebooted == set()


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
    store = InformerStore()
    container = {"name": "main", "image": "x"}
    seen(store, PODS, "team/p", metadata=meta, spec={"containers": [container], "nodeName": "n1", **spec})
    (pod,) = store.take().pods
    assert pod.spec is not None
    assert pod.spec.grace_seconds == seconds
    assert pod.spec.terminating is ("deletionTimestamp" in meta)


def a_claim(store: InformerStore, name: str, model: str, *, allocated: str = "", wrong: bool = False) -> None:
    selector = {"cel": {"expression": f'device.attributes["d.io"].model == "{model}"'}}
    exactly = {"deviceClassName": "gpu", "selectors": [selector], **({"count": "many"} if wrong else {})}
    result = {"request": "r", "driver": "d.io", "pool": "n1", "device": allocated}
    status = {"allocation": {"devices": {"results": [result]}}} if allocated else {}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    seen(store, RESOURCE_CLAIMS, name, metadata={"uid": name}, spec=spec, status=status)


def test_shared_device_with_unreadable_consumption_remains_in_use() -> None:
    store = InformerStore()
    a_slice(store, "a")
    share = {"request": "r", "driver": "d.io", "pool": "n1", "device": "d0", "shareID": "s"}
    results = [share | {"consumedCapacity": {"memory": "10Pi"}}]  # more than 2**63 - 1 thousandths
    status = {"allocation": {"devices": {"results": results}}}
    seen(store, RESOURCE_CLAIMS, "team/c", metadata={"uid": "c"}, spec={}, status=status)
    found = taken(store).definitions
    assert found is not None
    assert not store.quarantined
    (device,) = found.devices.claims["team/c"].allocated or ()
    assert (device.device.name, device.consumed) == ("d0", None)


def test_claim_that_requests_too_much_capacity_is_unsupported() -> None:
    store = InformerStore()
    exactly = {"deviceClassName": "gpu", "capacity": {"requests": {"memory": "10Pi"}}}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    result = {"request": "r", "driver": "d.io", "pool": "n1", "device": "d0"}
    status = {"allocation": {"devices": {"results": [result]}}}
    seen(store, RESOURCE_CLAIMS, "team/c", metadata={"uid": "c"}, spec=spec, status=status)
    found = taken(store).definitions
    assert found is not None
    claim = found.devices.claims["team/c"]
    assert claim.unsupported == "spec.devices.requests[0].exactly.capacity.requests.memory"
    assert [device.device.name for device in claim.allocated or ()] == ["d0"]


def a_slice(store: InformerStore, *models: str, name: str = "s1", pool: Any = None, **fields: Any) -> None:
    devices = [{"name": f"d{at}", "attributes": {"model": {"string": model}}} for at, model in enumerate(models)]
    whole = {"name": "n1", "generation": 1, "resourceSliceCount": 1, **(pool or {})}
    spec = {"driver": "d.io", "nodeName": "n1", "pool": whole, "devices": devices, **fields}
    seen(store, RESOURCE_SLICES, name, spec=spec)


UNREADABLE_COUNTERS = [{"name": "memory", "counters": {"bytes": {"value": "much"}}}]
EVERY_DEVICE = {"perDeviceNodeSelection": True, "nodeName": None}


@pytest.mark.parametrize(
    ("fields", "places"),
    [
        ({"nodeName": "n2"}, (DevicePlace("n2"),)),
        ({"nodeName": None, "allNodes": True}, (DevicePlace(),)),
        ({"nodeName": 7}, ()),
        ({**EVERY_DEVICE, "devices": [{"nodeName": 7}, {"nodeName": "n3"}]}, (DevicePlace("n3"),)),
        ({**EVERY_DEVICE, "devices": 7}, ()),
    ],
)
def test_pool_of_an_unreadable_slice_is_incomplete_on_its_readable_nodes(
    fields: Any, places: tuple[DevicePlace, ...]
) -> None:
    store = InformerStore()
    a_slice(store, "a")
    a_slice(store, name="s2", pool={"name": "other"}, sharedCounters=UNREADABLE_COUNTERS, **fields)
    found = taken(store).definitions
    assert found is not None
    assert [device.node for device in found.devices.devices] == ["n1"]
    assert found.devices.incomplete_places == {"d.io/other": places}
    assert list(store.quarantined) == [("resourceslices", "s2")]
    a_slice(store, name="s2", pool={"name": "other"}, nodeName="n2")
    found = taken(store).definitions
    assert found is not None
    assert (found.devices.incomplete, store.quarantined) == ((), {})


def test_unreadable_slice_of_the_newest_generation_replaces_older_slices() -> None:
    store = InformerStore()
    a_slice(store, "a")
    a_slice(store, name="s2", pool={"generation": 2}, sharedCounters=UNREADABLE_COUNTERS)
    found = taken(store).definitions
    assert found is not None
    assert (found.devices.devices, found.devices.incomplete) == ((), ("d.io/n1",))


def test_unreadable_slices_need_no_further_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []

    def counted(documents: Any, **options: Any) -> ClusterContent:
        reads.append(len(documents))
        return read_content(documents, **options)

    monkeypatch.setattr(informer_store, "read_content", counted)
    store = InformerStore()
    a_slice(store, "a")
    for number in range(3):
        a_slice(store, name=f"bad{number}", pool={"name": f"p{number}"}, sharedCounters=UNREADABLE_COUNTERS)
    found = taken(store).definitions
    assert found is not None
    assert (len(found.devices.devices), len(found.devices.incomplete), len(store.quarantined)) == (1, 3, 3)
    assert reads.count(4) == 1


def test_unreadable_slice_of_an_outdated_generation_is_ignored() -> None:
    store = InformerStore()
    a_slice(store, name="old", sharedCounters=UNREADABLE_COUNTERS)
    a_slice(store, "a", name="new", pool={"generation": 2})
    found = taken(store).definitions
    assert found is not None
    assert (len(found.devices.devices), found.devices.incomplete, store.quarantined) == (1, (), {})


def test_slice_without_a_readable_pool_has_no_effect_on_others() -> None:
    store = InformerStore()
    a_slice(store, "a")
    a_slice(store, name="s2", pool={"generation": "new"})
    seen(store, RESOURCE_SLICES, "s3", spec=7)
    found = taken(store).definitions
    assert found is not None
    assert (len(found.devices.devices), found.devices.incomplete) == (1, ())
    assert sorted(store.quarantined) == [("resourceslices", "s2"), ("resourceslices", "s3")]


@pytest.mark.parametrize("seed", range(5))
def test_changed_claims_give_the_same_devices_as_all_objects(seed: int) -> None:
    draw, store, last = random.Random(seed), InformerStore(), ClusterContent()
    seen(store, DEVICE_CLASSES, "gpu", spec={"selectors": [{"cel": {"expression": "device.driver == 'd.io'"}}]})
    a_slice(store, "a", "b", "a")
    for _ in range(40):
        name = f"team/c{draw.randrange(4)}"
        if draw.random() < 0.2:
            store.feed(RESOURCE_CLAIMS, Deleted(name))
        elif draw.random() < 0.1:
            a_slice(store, *draw.choices("abc", k=3))
        else:
            a_claim(store, name, draw.choice("abc"), allocated=draw.choice(["", "d1"]), wrong=draw.random() < 0.2)
        last = store.take().definitions or last
        fresh, fresh._defining = InformerStore(), store._defining
        whole = fresh.take()
        assert whole.definitions is not None
        assert last.devices == whole.definitions.devices
        assert store.quarantined.keys() == fresh.quarantined.keys()
