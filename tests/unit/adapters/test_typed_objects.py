"""Live objects decoded into declared fields give the result, or the error, of the whole object."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kubernetes.client import models

from hetsched.adapters.kubernetes import field_table, informer_store, typed_objects
from hetsched.adapters.kubernetes.informer_store import InformerStore
from hetsched.adapters.kubernetes.reflector import Deleted, Upserted
from hetsched.adapters.kubernetes.resources import NODES, PODS
from tests.unit.adapters.drawn_objects import CLUSTERS, Plain
from tests.unit.adapters.test_malformed_objects import ODD, places

ENDED = {"exitCode": 3, "reason": "Error", "message": "exec format error"}
CONTAINERS = [
    {
        "name": "main",
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
        "lastState": {"terminated": ENDED},
        "resources": {"requests": {"cpu": "2"}},
        "allocatedResources": {"cpu": "1"},
    }
]
POD: Plain = {
    "metadata": {
        "name": "web-1",
        "namespace": "shop",
        "uid": "u1",
        "resourceVersion": "7",
        "ownerReferences": [{"kind": "ReplicaSet", "name": "web-5d", "uid": "o1", "controller": True}],
    },
    "spec": {
        "nodeName": "n1",
        "schedulerName": "hetsched",
        "containers": [{"name": "main", "image": "web:1", "resources": {"requests": {"cpu": "1"}}}],
    },
    "status": {"phase": "Running", "containerStatuses": CONTAINERS},
}
NODE: Plain = {
    "metadata": {"name": "n1", "uid": "u1", "labels": {"kubernetes.io/arch": "amd64"}},
    "status": {"capacity": {"cpu": "8"}, "nodeInfo": {"bootID": "b"}},
}
VALUES: tuple[Any, ...] = (5, "x", True, {}, [{}])


def model_paths(model: str, depth: int = 0) -> Iterator[tuple[str, ...]]:
    """Yield the path of each field of a model and of the models in it; `[]` means an item of a list."""
    found = getattr(models, model)
    for own, name in found.attribute_map.items():
        kind = found.openapi_types[own]
        path = (name, "[]") if kind.lower().startswith("list[") else (name,)
        yield (name,)
        inner = field_table._model_of(models, kind)
        if inner and depth < 4 and inner != "V1ManagedFieldsEntry":
            yield from ((*path, *below) for below in model_paths(inner, depth + 1))


def with_value(plain: Plain, path: tuple[str, ...], value: Any) -> Plain:
    """Return a copy with a value at a path, and with the objects and lists above it."""
    built = at = copy.deepcopy(plain)
    steps = list(path)
    while len(steps) > 1:
        name = steps.pop(0)
        if steps[0] == "[]":
            steps.pop(0)
            items = at.setdefault(name, [])
            items.extend([{}] * (not items))
            at = items[0]
        else:
            at = at.setdefault(name, {})
    at[steps[0]] = value
    return built


def outcome(resource: Any, body: bytes) -> Any:
    """Return what the store makes of an object, of its deletion, and its reason for an unreadable one."""
    store = InformerStore()
    store.feed(resource, Upserted("shop/web-1", body))
    changes = store.take()
    odd = list(store.quarantined.values())
    if resource is PODS:
        store.feed(resource, Deleted("shop/web-1", body))
    return changes, odd, store.take().stopped


def whole_outcome(resource: Any, body: bytes) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(informer_store, "decode_pod", json.loads)
        patch.setattr(informer_store, "node_fields", lambda body: body)
        return outcome(resource, body)


@pytest.mark.parametrize(
    ("resource", "plain", "model"),
    [
        (PODS, POD, "V1Pod"),
        (PODS, {**POD, "spec": {**POD["spec"], "nodeName": None}}, "V1Pod"),
        (NODES, NODE, "V1Node"),
    ],
    ids=["bound-pod", "pending-pod", "node"],
)
def test_each_field_of_the_api_has_its_effect(resource: Any, plain: Plain, model: str) -> None:
    paths = [
        *dict.fromkeys(model_paths(model)),
        *(("spec", *path) for path in (("workloadRef",), ("workloadRef", "name"))),
    ]
    assert len(paths) > 100
    for path in paths:
        for value in VALUES:
            body = json.dumps(with_value(plain, path, value)).encode()
            assert outcome(resource, body) == whole_outcome(resource, body), (path, value)


SAFE = {"cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes": "data"}
RUNNING: Plain = {"state": {"running": {}}}
CONDITIONAL: dict[str, tuple[Plain, tuple[str, ...], Any]] = {
    "host path": (with_value(POD, ("spec", "volumes"), [{"name": "logs"}]), ("spec", "volumes", "[]", "hostPath"), {}),
    "name of a volume": (
        with_value(with_value(POD, ("metadata", "annotations"), SAFE), ("spec", "volumes"), [{"emptyDir": {}}]),
        ("spec", "volumes", "[]", "name"),
        "data",
    ),
    "name with pod-level resources": (with_value(POD, ("spec", "resources"), {"limits": {}}), ("spec", "name"), 5),
    "image with pod-level resources": (with_value(POD, ("spec", "resources"), {"limits": {}}), ("spec", "image"), 5),
    "infeasible resize": (
        with_value(
            with_value(POD, ("spec", "containers", "[]", "resources"), {"requests": {"cpu": "4"}}),
            ("status", "conditions"),
            [{"type": "PodResizePending"}],
        ),
        ("status", "conditions", "[]", "reason"),
        "Infeasible",
    ),
    "allocated pod-level resources": (
        with_value(
            with_value(POD, ("spec", "resources"), {"requests": {"cpu": "2"}}),
            ("status", "resources"),
            {"requests": {"cpu": "2"}},
        ),
        ("status", "allocatedResources"),
        {"cpu": "4"},
    ),
    "start time": (with_value(POD, ("status", "phase"), "Pending"), ("status", "startTime"), "2026-01-01T00:00:00Z"),
    "running sidecar": (
        with_value(POD, ("status", "containerStatuses"), [{"state": {"terminated": {"exitCode": 0}}}]),
        ("status", "initContainerStatuses"),
        [RUNNING],
    ),
    "status of Ready": (
        with_value(NODE, ("status", "conditions"), [{"type": "Ready", "status": "True"}]),
        ("status", "conditions", "[]", "status"),
        "False",
    ),
}


@pytest.mark.parametrize("case", CONDITIONAL)
def test_dependent_field_has_its_effect(case: str) -> None:
    plain, path, value = CONDITIONAL[case]
    resource = NODES if plain["metadata"]["name"] == "n1" else PODS
    before, after = (json.dumps(item).encode() for item in (plain, with_value(plain, path, value)))

    assert outcome(resource, after) == whole_outcome(resource, after) != outcome(resource, before)


@settings(max_examples=300)
@given(CLUSTERS, st.lists(ODD, max_size=2), st.integers(0, 2**32))
def test_drawn_objects_are_read_as_the_whole_objects(objects: list[Plain], odd: list[Any], seed: int) -> None:
    draw = random.Random(seed)
    for plain in copy.deepcopy([obj for obj in objects if obj["kind"] in ("Pod", "Node")]):
        resource = PODS if plain["kind"] == "Pod" else NODES
        for value in odd:
            container, key = draw.choice(places(plain))
            container[key] = copy.deepcopy(value)
        body = json.dumps(plain).encode()
        assert outcome(resource, body) == whole_outcome(resource, body)


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (("spec", "containers"), "main", "spec.containers"),
        (("spec", "containers"), [7], "spec.containers[0]"),
        (("spec", "volumes"), [{}, "data"], "spec.volumes[1]"),
        (("metadata", "ownerReferences"), [True], "metadata.ownerReferences[0]"),
        (("status", "containerStatuses"), {"name": "main"}, "status.containerStatuses"),
        (("status",), [], "status"),
    ],
)
def test_malformed_object_is_quarantined_with_its_field(path: Any, value: Any, place: str) -> None:
    store = InformerStore()
    store.feed(PODS, Upserted("shop/web-1", json.dumps(with_value(POD, path, value)).encode()))

    (odd,) = store.quarantined.values()

    assert odd.message.startswith(f"{place}: must be"), odd


def test_fields_that_are_not_read_are_skipped() -> None:
    noise = {"managedFields": [{"manager": "kubelet", "fieldsV1": {"f:spec": {}}}], "generateName": "web-"}
    pod = {**POD, "metadata": POD["metadata"] | noise}
    node = {**NODE, "status": NODE["status"] | {"daemonEndpoints": {}}, "metadata": NODE["metadata"] | noise}

    assert typed_objects.decode_pod(json.dumps(pod).encode()) == POD
    assert msgspec.json.decode(typed_objects.pod_fields(json.dumps(pod).encode())) == POD
    assert msgspec.json.decode(typed_objects.node_fields(json.dumps(node).encode())) == NODE


def test_node_is_parsed_again_only_after_a_relevant_change() -> None:
    store = InformerStore()
    seen = []
    for version, cpu in ((1, "8"), (2, "8"), (3, "many"), (4, "many"), (5, "8")):
        node = with_value(NODE, ("status", "capacity", "cpu"), cpu)
        node["metadata"]["resourceVersion"] = str(version)
        store.feed(NODES, Upserted("n1", json.dumps(node).encode()))
        seen.append((len(store.take().nodes), list(store.quarantined)))

    odd = [("nodes", "n1")]
    assert seen == [(1, []), (0, []), (0, odd), (0, odd), (0, [])]
