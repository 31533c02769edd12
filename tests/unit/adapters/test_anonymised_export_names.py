"""An anonymised export contains no name chosen by users; texts that are no names stay readable."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from msgspec import inspect

from hetsched.adapters.anonymising import anonymised
from hetsched.adapters.anonymising.well_known import PARAMETER_WORDS
from hetsched.adapters.files import parse_cluster
from hetsched.adapters.objects.export.cluster import write_cluster
from hetsched.adapters.traces.simulated_fleet import demo_cluster
from hetsched.contracts.documents import encode
from hetsched.contracts.message import Message
from hetsched.contracts.objects.allocation import EMPTY, CardGrant
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.node_images import pack_images
from hetsched.contracts.objects.policy import PluginUse, PolicySpec
from hetsched.contracts.params import params_schema
from tests.builders import a_card, a_node, a_pod
from tests.unit.adapters.anonymous import REGISTRY
from tests.unit.adapters.reading import content, pod_text, problems

# Texts from a fixed vocabulary, numbers and CPU lists, wherever a content contains them, and names that stay.
CHECKED = {
    "CardLink.kind": "nvlink", "ClaimRequest.modes": "ReadWriteOnce", "ClusterContent.namespace_policies": "spread",
    "Expression.operator": "In", "GpuCard.model": "A100", "GpuDemand.models": "A100", "HostPort.protocol": "TCP",
    "ImageDemand.floors": "amd64", "ImageFacts.platforms": "linux/amd64", "IsaDemand.source": "kubernetes.io/arch",
    "IsaGrant.mode": "native",
    "NumaDemand.cpu_policy": "none", "NumaReport.lost_cpus": "7", "NumaReport.reserved_cpus": "0",
    "NumaZone.cpus": "0-3", "NumaZone.siblings": "0,1", "PersistentVolume.modes": "ReadWriteOnce",
    "PluginUse.name": "binpack", "PodSpec.policy": "spread", "PodSpec.policy_rule": "annotation",
    "PodSpec.qos": "Burstable", "PolicySpec.name": "spread", "Problem.code": "IsaUnknownExtension",
    "Shape.load_profile": "busy", "Taint.effect": "NoSchedule", "Ties.by": "name", "Toleration.effect": "NoSchedule",
    "Toleration.operator": "Equal", "ZoneGrant.cpus": "0-3",
}  # fmt: skip


class Filled:
    """Fill any contract with `acme` and a number wherever it has text."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def of(self, kind: inspect.Type, place: str) -> Any:
        match kind:
            case inspect.StructType(cls=cls, fields=fields):
                return cls(**{field.name: self.of(field.type, f"{cls.__name__}.{field.name}") for field in fields})
            case inspect.StrType():
                return CHECKED.get(place) or f"acme{next(self._numbers)}"
            case inspect.CustomType():
                return Message("acme {name}", name=f"acme{next(self._numbers)}")
            case inspect.VarTupleType(item_type=item):
                return (self.of(item, place),)
            case inspect.TupleType(item_types=items):
                return tuple(self.of(item, place) for item in items)
            case inspect.DictType(key_type=key, value_type=value):
                inner = inspect.StrType() if isinstance(value, inspect.AnyType) else value
                return {f"acme{next(self._numbers)}/acme" if key else "": self.of(inner, place)}
            case inspect.UnionType(types=kinds):
                return self.of(next(one for one in kinds if not isinstance(one, inspect.NoneType)), place)
            case inspect.LiteralType(values=values):
                return values[0]
            case inspect.Metadata(type=inner):
                return self.of(inner, place)
            case inspect.BoolType():
                return True
            case inspect.BytesType():
                return pack_images({"acme": 1})
            case inspect.FloatType():
                return 1.0
            case inspect.IntType():
                return 1
        raise AssertionError(f"{place}: unknown kind {kind}")


def text_of(found: ClusterContent) -> str:
    return write_cluster(anonymised(found)).decode()


def test_export_contains_no_text_of_any_field() -> None:
    filled: ClusterContent = Filled().of(inspect.type_info(ClusterContent), "ClusterContent")
    assert write_cluster(filled).decode().count("acme") > 150
    remaining = [line for line in text_of(filled).splitlines() if "acme" in line]
    assert remaining == []


def test_anonymised_content_contains_no_name() -> None:
    filled: ClusterContent = Filled().of(inspect.type_info(ClusterContent), "ClusterContent")
    assert b"acme" not in encode(anonymised(filled))


CLUSTER = """\
apiVersion: v1
kind: Namespace
metadata: {name: acme-pay, labels: {acme.com/tier: Acme-gold, team: acme}, annotations: {acme.com/owner: Ann Acme}}
---
apiVersion: v1
kind: Node
metadata:
  name: gpu-7.acme.internal
  uid: acme-uid
  labels:
    kubernetes.io/hostname: gpu-7.acme.internal
    kubernetes.io/arch: amd64
    topology.kubernetes.io/zone: acme-berlin
    node-role.kubernetes.io/acme: "true"
    acme.com/rack: acme-r7
    nvidia.com/gpu.product: NVIDIA-L4
    nvidia.com/gpu.machine: Acme-Server
    feature.node.kubernetes.io/cpu-cpuid.AVX512F: "true"
    feature.node.kubernetes.io/custom-acme: "true"
  annotations: {hetsched.io/isa: x86-64-v3, acme.com/serial: ACME-4711, csi.volume.kubernetes.io/nodeid: acme}
spec: {taints: [{key: acme.com/only, value: acme-pay, effect: NoSchedule}]}
status:
  addresses: [{type: InternalIP, address: 10.66.77.88}, {type: Hostname, address: gpu-7.acme.internal}]
  allocatable: {cpu: "8", memory: 32Gi, pods: "110", acme.com/fpga: "2", nvidia.com/gpu: "1"}
---
apiVersion: v1
kind: Pod
metadata:
  name: acme-web-0
  namespace: acme-pay
  uid: acme-pod-uid
  labels: {app: acme-web, kubernetes.io/hostname: acme-x}
  annotations: {acme.com/contact: ann@acme.com}
  ownerReferences: [{kind: AcmeApp, name: acme-web, uid: acme-owner, controller: true}]
spec:
  schedulerName: acme-scheduler
  priorityClassName: acme-high
  imagePullSecrets: [{name: acme-registry}]
  schedulingGates: [{name: acme.com/hold}]
  containers:
  - name: acme-main
    image: registry.acme.com/web:1.2-acme
    env: [{name: TOKEN, value: acme-secret}]
    ports: [{containerPort: 80, hostPort: 80, hostIP: 10.66.77.88}]
    resources: {limits: {acme.com/fpga: 1}}
  tolerations: [{key: acme.com/only, value: acme-pay}]
  nodeSelector: {acme.com/rack: acme-r7}
  volumes: [{name: acme-data, persistentVolumeClaim: {claimName: acme-data}}]
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: acme-high}
value: 7
"""


def test_export_contains_no_original_names() -> None:
    text = text_of(parse_cluster([("acme.yaml", CLUSTER.encode())])).lower()
    assert [word for word in ("acme", "10.66", "ann", "4711") if word in text.replace("annotations", "")] == []


def test_text_without_names_is_kept() -> None:
    (node,) = anonymised(parse_cluster([("acme.yaml", CLUSTER.encode())])).nodes
    assert node.labels["kubernetes.io/arch"] == "amd64"
    assert node.labels["nvidia.com/gpu.product"] == "NVIDIA-L4"
    assert node.labels["feature.node.kubernetes.io/cpu-cpuid.AVX512F"] == "true"
    assert node.annotations == {"hetsched.io/isa": "x86-64-v3"}
    assert node.allocatable["nvidia.com/gpu"] == 1


def test_equal_names_have_equal_pseudonyms() -> None:
    found = anonymised(parse_cluster([("acme.yaml", CLUSTER.encode())]))
    (node,), (pod,) = found.nodes, found.pending
    ((key, value),) = pod.shape.node_selector
    assert node.labels[key] == value
    assert (pod.shape.tolerations[0].key, pod.shape.tolerations[0].value) == (node.taints[0].key, node.taints[0].value)
    assert node.labels["kubernetes.io/hostname"] == node.name
    assert pod.namespace in found.namespaces
    assert {resource for resource, _ in pod.shape.requests} <= node.allocatable.keys()


def test_export_contains_no_name_of_the_demo_fleet() -> None:
    fleet = demo_cluster(3)
    text = text_of(fleet)
    names = {node.name for node in fleet.nodes} | {pod.name for pod in fleet.running} | fleet.namespaces.keys()
    uuids = {card.uuid for node in fleet.nodes for card in node.gpus or () if card.uuid}
    racks = {node.labels["topology.kubernetes.io/zone"] for node in fleet.nodes}
    assert [name for name in names | uuids | racks if f'"{name}"' in text] == []


@pytest.mark.parametrize(
    ("labels", "annotations"),
    [
        ({}, {"hetsched.io/isa": "acme64"}),
        ({"pod-group.scheduling.sigs.k8s.io/name": "g", "pod-group.scheduling.sigs.k8s.io/min-available": "acme"}, {}),
        ({}, {"hetsched.io/gpu-model-match": "acme"}),
        ({}, {"hetsched.io/policy": "Acme!"}),
    ],
)
def test_invalid_request_stays_invalid_without_its_text(labels: dict[str, str], annotations: dict[str, str]) -> None:
    found = content(pod_text(labels=labels, annotations=annotations))
    text = text_of(found)
    assert "acme" not in text.lower()
    (again,) = parse_cluster([("export.json", text.encode())]).pending
    assert problems(again) == problems(found.pending[0]) != []


def test_gpus_and_their_reservations_are_kept_together() -> None:
    node = a_node("n").having(gpus=(a_card(0, uuid="GPU-acme-1"),)).build()
    pod = a_pod("p").gpu(1).running_on("n", CardGrant(0, 1000, 40960, "GPU-acme-1")).build()
    found = anonymised(ClusterContent(nodes=(node,), running=(pod,)))
    assert [card.uuid for card in found.nodes[0].gpus or ()] == ["card-0001"]
    assert [card.uuid for card in (found.running[0].allocation or EMPTY).gpus] == ["card-0001"]


def test_policy_keeps_its_name_and_loses_its_description() -> None:
    policy = PolicySpec("ours", (PluginUse("resource-fit"),), description="for acme", version=3)
    (found,) = anonymised(ClusterContent(policies=(policy,))).policies
    assert found == PolicySpec("ours", (PluginUse("resource-fit"),), version=3)


def test_parameters_of_unknown_plugins_keep_only_numbers_and_words() -> None:
    params = {"site": "acme", "weights": {"acme": 1}, "most": 3, "mode": "log", "curve": [[0, 1.5], [1, 2]], "on": True}
    policy = PolicySpec("ours", (PluginUse("acme-plugin", params=params),))
    (found,) = anonymised(ClusterContent(policies=(policy,))).policies
    assert found.plugins[0].params == {"most": 3, "mode": "log", "curve": [[0, 1.5], [1, 2]], "on": True}


def test_every_parameter_of_built_in_plugins_is_classified() -> None:
    free, words = set(), set()

    def look(schema: Any, place: str, known: Any) -> None:
        if "$ref" in schema:
            look(known[schema["$ref"].rsplit("/", 1)[1]], place, known)
        elif "enum" in schema:
            words.update(word for word in schema["enum"] if isinstance(word, str))
        elif schema.get("type") == "string" or isinstance(schema.get("additionalProperties"), dict):
            free.add(place)
        for inner in (*schema.get("anyOf", ()), *schema.get("prefixItems", ())):
            look(inner, place, known)
        if isinstance(schema.get("items"), dict):
            look(schema["items"], place, known)

    for info in REGISTRY:
        schema = params_schema(info.params)
        for name, inner in schema.get("properties", {}).items():
            look(inner, f"{info.name}.{name}", schema.get("$defs", {}))
    assert words == PARAMETER_WORDS
    assert free == {
        "binpack.resources", "fair-share.team_label", "fair-share.team_weights", "fair-share.namespace_weights",
    }  # fmt: skip
