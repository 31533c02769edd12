"""NodeGpu, NodeUsage and NodeResourceTopology objects of a Node."""

import pytest

from hetsched.adapters.objects.export.cluster import card_object
from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.node_report import GpuCard, NodeReport, NumaReport, NumaZone, Usage
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.diagnosis import Diagnosis
from tests.builders import a_pod
from tests.unit.adapters.reading import content
from tests.unit.engine.fleet import policy_of

NODE = "{apiVersion: v1, kind: Node, metadata: {name: n}, status: {allocatable: {%s}}}\n---\n"


def node(text: str, allocatable: str = "") -> NodeReport:
    (found,) = content(NODE % allocatable + text, workload=False).nodes
    return found


def gpu(*cards: str) -> str:
    listed = ", ".join(cards)
    return f"{{apiVersion: hetsched.io/v1alpha1, kind: NodeGpu, metadata: {{name: n}}, spec: {{cards: [{listed}]}}}}"


def test_cards_of_the_contracts_example() -> None:
    found = node(
        gpu(
            "{index: 0, uuid: GPU-1, model: A100-SXM4-80GB, memoryMiB: 81920, cores: 6912, fp32Tflops: 19.5, "
            "bandwidthGBs: 2039, clockMHz: 1410, numaZone: node-0, healthy: true}",
            "{index: 3, healthy: false}",
        )
    )
    assert found.gpus == (
        GpuCard(0, "GPU-1", "A100-SXM4-80GB", "nvidia", 81920, 6912, 19.5, 2039.0, 1410, "node-0"),
        GpuCard(3, healthy=False),
    )


def test_gpu_in_maintenance_is_stored_as_unhealthy() -> None:
    """It is stored as unhealthy, so that a component that reads only the health does not assign it."""
    found = node(gpu("{index: 0, maintenance: true}", "{index: 1, healthy: false, maintenance: true}"))
    assert found.gpus == tuple(GpuCard(index, healthy=False, maintenance=True) for index in (0, 1))
    written = [card_object(card) for card in (*found.gpus, GpuCard(2))]
    assert [(card["healthy"], card.get("maintenance")) for card in written] == [
        (False, True), (False, True), (True, None),
    ]  # fmt: skip


def test_empty_gpu_list_means_no_gpus() -> None:
    assert node(gpu()).gpus == ()
    assert node("").gpus is None


@pytest.mark.parametrize(
    ("allocatable", "vendor"),
    [("amd.com/gpu: 1", "amd"), ("nvidia.com/gpu: 1", "nvidia"), ("amd.com/gpu: 1, nvidia.com/gpu: 1", ""), ("", "")],
)
def test_unnamed_gpus_get_the_only_vendor_of_their_node(allocatable: str, vendor: str) -> None:
    (card,) = node(gpu("{index: 0}"), allocatable).gpus or ()
    assert card.vendor == vendor


@pytest.mark.parametrize(
    ("card", "place"),
    [
        ("{}", "spec.cards[0].index"),
        ("{index: -1}", "spec.cards[0].index"),
        ("{index: 256}", "spec.cards[0].index"),
        ("{index: '0'}", "spec.cards[0].index"),
        ("{index: 0, memoryMiB: -1}", "spec.cards[0].memoryMiB"),
        ("{index: 0, memoryMiB: 16Gi}", "spec.cards[0].memoryMiB"),
        ("{index: 0, fp32Tflops: fast}", "spec.cards[0].fp32Tflops"),
        ("{index: 0, healthy: 1}", "spec.cards[0].healthy"),
        ("{index: 0, model: [a]}", "spec.cards[0].model"),
        ("{index: 0}, {index: 0}", "spec.cards[1].index"),
        ("{index: 0, uuid: GPU-1}, {index: 1, uuid: GPU-1}", "spec.cards[1].uuid"),
        (f"{{index: 0, uuid: {'x' * 121}}}", "spec.cards[0].uuid"),
        ("5", "spec.cards[0]"),
    ],
)
def test_wrong_cards_refuse_the_file(card: str, place: str) -> None:
    with pytest.raises(InputError) as refused:
        node(gpu(card))
    assert refused.value.place == f"file.yaml#2 {place}"


def test_use_of_the_contracts_example() -> None:
    found = node(
        """\
apiVersion: hetsched.io/v1alpha1
kind: NodeUsage
metadata: {name: n}
usage: {cpu: 3500m, memory: 512Mi, hetsched.io/network-mbps: "40", hetsched.io/disk-mbps: "5"}
observedAt: 2026-11-20T10:00:00Z
"""
    )
    amounts = {"cpu": 3500, "memory": 512 * 2**20, "hetsched.io/network-mbps": 40, "hetsched.io/disk-mbps": 5}
    assert found.usage == Usage(amounts, "2026-11-20T10:00:00Z")


def test_zones_of_the_standard_group() -> None:
    found = node(
        """\
apiVersion: topology.node.k8s.io/v1alpha2
kind: NodeResourceTopology
metadata: {name: n}
attributes:
- {name: cpuManagerPolicy, value: static}
- {name: topologyManagerPolicy, value: single-numa-node}
- {name: reservedSystemCPUs, value: "0,4"}
zones:
- name: node-0
  type: Node
  costs: [{name: node-0, value: 10}, {name: node-1, value: 21}]
  attributes:
  - {name: hetsched.io/cpus, value: 0-3}
  - {name: hetsched.io/siblings, value: "0,2;1,3"}
  - {name: offline_capacity, value: 3500m}
  resources:
  - {name: cpu, capacity: "4", allocatable: "3", available: "1"}
  - {name: memory, capacity: 8Gi}
- {name: socket-0, type: Socket}
- {name: node-1}
"""
    )
    zone = NumaZone(
        "node-0",
        "0-3",
        "0,2;1,3",
        {"cpu": 4000, "memory": 8 * 2**30},
        {"cpu": 3000},
        3500,
        {"node-0": 10, "node-1": 21},
        available={"cpu": 1000},
    )
    assert found.numa == NumaReport((zone, NumaZone("node-1")), "static", "single-numa-node", None, "0,4")


def test_zones_of_cranes_group() -> None:
    found = node(
        """\
apiVersion: topology.crane.io/v1alpha1
kind: NodeResourceTopology
metadata: {name: n}
craneManagerPolicy: {cpuManagerPolicy: Static, topologyManagerPolicy: SingleNUMANodePodLevel}
attributes: {go.crane.io/reserved-system-cpus: 0-1}
zones:
- {name: node0, type: Node, resources: {capacity: {cpu: "8"}, allocatable: {cpu: "7"}, reservedCPUNums: 1}}
"""
    )
    # crane pins by itself (Static), so the kubelet must not: its policy is none.
    zone = NumaZone("node0", capacity={"cpu": 8000}, allocatable={"cpu": 7000})
    assert found.numa == NumaReport((zone,), "none", "single-numa-node", "pod", "0-1")


def test_crane_policies_do_not_set_kubelet_policies() -> None:
    found = node(
        "{apiVersion: topology.crane.io/v1alpha1, kind: NodeResourceTopology, metadata: {name: n}, "
        "craneManagerPolicy: {cpuManagerPolicy: None, topologyManagerPolicy: SingleNUMANodePodLevel}, zones: []}"
    )
    assert found.numa == NumaReport((), "static", None, None, None)


@pytest.mark.parametrize(
    ("word", "policy", "scope"),
    [
        ("SingleNUMANodeContainerLevel", "single-numa-node", "container"),
        ("RestrictedPodLevel", "restricted", "pod"),
        ("BestEffortContainerLevel", "best-effort", "container"),
        ("Unheard", None, None),
    ],
)
def test_deprecated_policies_are_understood(word: str, policy: str | None, scope: str | None) -> None:
    found = node(
        "{apiVersion: topology.node.k8s.io/v1alpha1, kind: NodeResourceTopology, metadata: {name: n}, "
        f"topologyPolicies: [{word}], zones: []}}"
    ).numa
    assert found is not None
    assert (found.topology_manager_policy, found.topology_manager_scope) == (policy, scope)


def topology(zone: str) -> str:
    return (
        "{apiVersion: topology.node.k8s.io/v1alpha2, kind: NodeResourceTopology, metadata: {name: n}, "
        f"zones: [{zone}]}}"
    )


def test_zone_with_an_unreadable_capacity_is_unusable_and_noted() -> None:
    found = node(topology("{name: node-0, attributes: [{name: offline_capacity, value: lots}]}"))
    assert found.numa is not None
    assert found.numa.zones[0].offline_capacity_millis == 0
    assert found.problems[0].startswith("ZoneCapacityUnreadable: zone node-0")


def test_rejection_names_the_unreadable_offline_capacity() -> None:
    zone = "{name: z, resources: [{name: cpu, capacity: 8}], attributes: [{name: offline_capacity, value: '%s'}]}"

    def diagnosis(capacity: str) -> Diagnosis:
        state = ClusterState([node(topology(zone % capacity), "cpu: 8, pods: 9")])
        pod = a_pod("p").cpu(2).numa(aware=True, cpu_policy="exclusive").guaranteed().build()
        return diagnose(Scheduler(state, policy_of("numa-fit")), pod)

    unreadable, lent = diagnosis("lots"), diagnosis("1")
    assert [reason.code for reason in unreadable.reasons] == ["ZoneCapacityUnreadable"]
    assert "the offline_capacity of a NUMA zone cannot be read" in unreadable.summary
    assert unreadable.verdict is Verdict.NOT_NOW
    assert [reason.code for reason in lent.reasons] == ["ZoneCapacityLent"]


@pytest.mark.parametrize(
    "zone",
    [
        "{}",
        "{name: a}, {name: a}",
        "{name: a, costs: [{name: a, value: near}]}",
        "{name: a, resources: [{name: cpu, capacity: -1}]}",
        "{name: a, attributes: [{name: hetsched.io/cpus, value: 3-1}]}",
        "{name: a, attributes: [{name: hetsched.io/siblings, value: '0;x'}]}",
        "{name: a, attributes: [{name: hetsched.io/cpus, value: 0-3}]}, "
        "{name: b, attributes: [{name: hetsched.io/cpus, value: 3-5}]}",
    ],
)
def test_wrong_zones_refuse_the_file(zone: str) -> None:
    with pytest.raises(InputError) as refused:
        node(topology(zone))
    assert refused.value.place.startswith("file.yaml#2 zones[")


def test_description_of_an_absent_node_is_dropped() -> None:
    assert content(gpu("{index: 0}"), workload=False).nodes == ()
