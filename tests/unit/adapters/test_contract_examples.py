"""The objects printed in the public contract."""

import pytest

from hetsched.adapters.objects.allocation import (
    parse_allocation,
    parse_topology_result,
    write_allocation,
    write_topology_result,
)
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.allocation import Allocation, CardGrant, IsaGrant, ZoneGrant
from tests.unit.adapters.reading import content, pod

EXAMPLE = """\
apiVersion: v1
kind: Node
metadata: {name: gpu-node-0}
---
apiVersion: v1
kind: Node
metadata: {name: worker-1}
---
apiVersion: hetsched.io/v1alpha1
kind: NodeGpu
metadata: {name: gpu-node-0}
spec:
  cards:
  - {index: 0, uuid: GPU-…, model: A100-SXM4-80GB, memoryMiB: 81920, cores: 6912, fp32Tflops: 19.5, bandwidthGBs: 2039, clockMHz: 1410, numaZone: node-0, healthy: true}
---
apiVersion: hetsched.io/v1alpha1
kind: NodeUsage
metadata: {name: worker-1}
usage: {cpu: 3500m, memory: 512Mi, hetsched.io/network-mbps: "40", hetsched.io/disk-mbps: "5"}
observedAt: 2026-11-20T10:00:00Z
---
apiVersion: hetsched.io/v1alpha1
kind: SchedulingPolicy
metadata: {name: binpack-gpu}
spec:
  plugins:                      # order matters; a plugin that is not listed is off
  - {name: resource-fit}
  - {name: binpack, weight: 2, params: {shape: [[0, 0], [100, 10]], resources: {cpu: 1, nvidia.com/gpu: 1}}}
  ties: {by: name}              # or {by: random, seed: 7}; lowest node name is the default
"""  # noqa: E501 - as printed

ALLOCATION = (
    '{"v":1,"cpus":"0-3","zones":[{"name":"node-0","cpus":"0-3","memoryMiB":4096}],'
    '"gpus":[{"index":0,"uuid":"GPU-1","milli":1000,"memoryMiB":81920}],"isa":{"mode":"native","required":"rv64gc"},'
    '"policy":"exclusive","containers":{"main":"0-3"},"uid":"u","node":"n","epoch":3,"sig":"s"}'
)


def test_examples_of_contract_section_1() -> None:
    read = content(EXAMPLE, workload=False)
    gpu_node, worker = read.nodes
    assert gpu_node.gpus is not None
    assert gpu_node.gpus[0].memory_mib == 81920
    assert worker.usage is not None
    assert worker.usage.observed_at == "2026-11-20T10:00:00Z"
    assert [plugin.name for plugin in read.policies[0].plugins] == ["resource-fit", "binpack"]


def test_allocation_with_all_members_round_trips() -> None:
    allocation = Allocation(
        gpus=(CardGrant(0, 1000, 81920, "GPU-1"),),
        zones=(ZoneGrant("node-0", "0-3", memory_mib=4096),),
        isa=IsaGrant("native", "rv64gc"),
        cpu_policy="exclusive",
    )
    assert parse_allocation(ALLOCATION) == allocation
    assert parse_allocation(write_allocation(allocation)) == allocation


def test_running_pod_has_its_annotated_resources_and_a_pending_one_none() -> None:
    annotations = {"hetsched.io/allocation": ALLOCATION}
    running = pod("nodeName: n", annotations=annotations)
    assert running.allocation is not None
    assert running.allocation.gpus[0].uuid == "GPU-1"
    assert pod(annotations=annotations).allocation is None


def test_cranes_result_names_zones_and_their_cpu() -> None:
    text = '[{"name":"node0","type":"Node","resources":{"capacity":{"cpu":"2"}}},{"name":"node1"}]'
    assert parse_topology_result(text) == Allocation(zones=(ZoneGrant("node0", cpu_millis=2000), ZoneGrant("node1")))


def test_crane_can_read_our_annotation() -> None:
    text = '[{"name":"node0","type":"Node","resources":{"capacity":{"cpu":"2"}}}]'
    assert write_topology_result(Allocation(zones=(ZoneGrant("node-0", "4-5", memory_mib=0),))) == text
    # Memory is the zone's memory (crane writes the CPU figure there), and the number is that of the zone's name.
    both = Allocation(zones=(ZoneGrant("node-00", None, 2500, 1024), ZoneGrant("node-12", None, 1000)))
    assert parse_topology_result(write_topology_result(both)) == Allocation(
        zones=(ZoneGrant("node0", None, 2500, 1024), ZoneGrant("node12", None, 1000))
    )
    assert write_topology_result(Allocation()) == ""
    assert pod("nodeName: n", annotations={"topology.crane.io/topology-result": text}).allocation is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"v":2}',
        '{"v":1,"gpus":[{"index":-1}]}',
        '{"v":1,"gpus":[{"index":0,"milli":0}]}',
        '{"v":1,"gpus":[{"index":0},{"index":0}]}',
        '{"v":1,"gpus":[{"index":99999}]}',
        '{"v":1,"isa":{"mode":"magic"}}',
        '{"v":1,"zones":[{"name":"a","cpus":"3-1"}]}',
        "[" * 100_000,
    ],
)
def test_invalid_allocation_is_rejected(text: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_allocation(text)
    assert refused.value.code in ("AllocationMalformed", "CpusetMalformed")
