"""The scheduler cache equals a rebuilt state when facts of the CPU manager arrive after the pods were placed."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest
from django.utils import timezone

from hetsched.contracts.objects.node_report import KubeletGrant, NodeReport
from hetsched.contracts.objects.workload import ContainerDemand
from hetsched.engine.cluster.state import ClusterState
from hetsched.inventory.facts import new_facts, write_facts
from hetsched.inventory.models import Cluster, Node
from hetsched.inventory.models.node_facts import NodeFacts
from hetsched.inventory.node_loads import advance
from hetsched.placement.actions import release
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.lifecycle import State
from hetsched.placement.models import Pod
from hetsched.placement.scheduler_cache import cache_of
from hetsched.storage.write_lock import write_transaction
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.situations import a_cluster, placed, submitted
from workers import schedule

pytestmark = pytest.mark.django_db
STEPS = 14
NIC = "example.com/nic"


def two_zones() -> NodeBuilder:
    """Return a node of two zones of 4 CPUs each, whose CPU manager is unknown."""
    return a_node("n1").cpu(8).zone("node-0", "0-3").zone("node-1", "4-7")


def whole(name: str, cpus: int) -> PodBuilder:
    return a_pod(name).cpu(cpus).guaranteed().having(uid=f"uid-{name}")


def nics_in_two_zones(policy: str) -> NodeBuilder:
    """Return a node of two zones of 4 CPUs and 2 NICs each, whose CPU manager pins nothing."""
    built = two_zones().offering(NIC, 4).kubelet("none", policy).build()
    assert built.numa is not None
    zones = tuple(msgspec.structs.replace(z, allocatable={**z.allocatable, NIC: 2}) for z in built.numa.zones)
    return two_zones().offering(NIC, 4).having(numa=msgspec.structs.replace(built.numa, zones=zones))


def with_nics(name: str, cpus: int, nics: int) -> PodBuilder:
    """Return a pod of whole CPUs and NICs under a policy without `numa-fit`."""
    demand = ContainerDemand(cpus, devices=((NIC, nics),) if nics else ())
    return whole(name, cpus).requesting(NIC, nics).containers(demand).policy("default-kube")


def decided(cluster: Cluster, pod: PodBuilder) -> None:
    submitted(cluster, pod)
    schedule.run(cluster.pk)


def one_nic_left_in_each_zone(policy: str) -> Cluster:
    """Return a cluster where p has a NIC of the first zone and q one of the second; o and r have ended."""
    cluster = a_cluster(nics_in_two_zones(policy))
    for name in ("p", "o", "q", "r"):
        decided(cluster, with_nics(name, 1, 1))
    released(cluster, "o")
    released(cluster, "r")
    return cluster


def free_nics(cluster: Cluster) -> list[int]:
    """Return the NICs of each zone that no pod is predicted to get, the same in the cache and in a rebuilt state."""
    cpus_equal_to_rebuilt_state(cluster)
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        found: list[int] = snapshot.state.columns.field("zone_devices_free")[:, 0].tolist()
    return found


def report(cluster: Cluster, **numa: Any) -> None:
    """Receive a report of the node with these changed facts of its kubelet."""
    before = Node.objects.get().report
    assert before.numa is not None
    settled(cluster, msgspec.structs.replace(before, numa=msgspec.structs.replace(before.numa, **numa)))


def settled(cluster: Cluster, now: NodeReport) -> None:
    with write_transaction():
        locked = advance(cluster.pk)
        node = Node.objects.get(cluster=cluster)
        row = NodeFacts.objects.filter(node=node).first() or new_facts(node)
        row.base = row.known = now
        write_facts(locked, node, row, timezone.now())


def released(cluster: Cluster, name: str) -> None:
    release(cluster.pk, [Pod.objects.get(name=name).pk], to=State.SUCCEEDED, reason="done")


def held_cpus(state: ClusterState) -> dict[str, list[int]]:
    """Return the CPUs of each pod on the node."""
    found: dict[str, list[int]] = {}
    for cpu, keys in sorted(state.zones.held.get(0, {}).items()):
        for key in keys:
            found.setdefault(key.partition("/")[2], []).append(cpu)
    return found


def cpus_equal_to_rebuilt_state(cluster: Cluster, where: str = "") -> dict[str, list[int]]:
    """Compare every column and every zone; return the CPUs of each pod."""
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        ours, rebuilt = snapshot.state, load_state(cluster.pk).state
    for name in (*ours.columns.layout.static, *ours.columns.layout.load):
        if name != "topology_setup":  # a number of the state's own vocabulary
            np.testing.assert_array_equal(ours.columns.field(name), rebuilt.columns.field(name), err_msg=where + name)
    setups = [[s.setups.values[number] for number in s.columns.field("topology_setup")] for s in (ours, rebuilt)]
    assert setups[0] == setups[1], where
    assert (ours.zones.held, ours.zones.unexplained) == (rebuilt.zones.held, rebuilt.zones.unexplained), where
    assert ours.digest() == rebuilt.digest(), where
    return held_cpus(ours)


def test_grant_of_one_pod_moves_the_predicted_cpus_of_another() -> None:
    # Both were reserved before the CPU manager was known. It is predicted to give p CPUs 0-1 and q 2-3; then the agent
    # reports that p has 2-3. The cache kept 2-3 for q too.
    cluster = a_cluster(two_zones())
    placed(cluster, "n1", whole("p", 2))
    placed(cluster, "n1", whole("q", 2))
    report(cluster, cpu_manager_policy="static", topology_manager_policy="restricted")
    assert cpus_equal_to_rebuilt_state(cluster) == {"p": [0, 1], "q": [2, 3]}
    report(cluster, grants=(KubeletGrant("uid-p", "2-3"),))
    assert cpus_equal_to_rebuilt_state(cluster) == {"p": [2, 3], "q": [0, 1]}


def test_end_of_one_pod_moves_the_predicted_cpus_of_another() -> None:
    cluster = a_cluster(two_zones())
    placed(cluster, "n1", whole("p", 2))
    placed(cluster, "n1", whole("q", 2))
    report(cluster, cpu_manager_policy="static", topology_manager_policy="restricted")
    assert cpus_equal_to_rebuilt_state(cluster) == {"p": [0, 1], "q": [2, 3]}
    released(cluster, "p")
    assert cpus_equal_to_rebuilt_state(cluster) == {"q": [0, 1]}


def test_gpus_that_a_pod_does_not_name_are_the_lowest_free_ones() -> None:
    cluster = a_cluster(a_node("n1").gpus(2))
    placed(cluster, "n1", a_pod("p").gpu())
    placed(cluster, "n1", a_pod("q").gpu())
    cpus_equal_to_rebuilt_state(cluster)
    released(cluster, "p")
    cpus_equal_to_rebuilt_state(cluster)
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        assert snapshot.state.columns.field("card_milli_free")[:, 0].tolist() == [0, 1000]


def test_end_of_a_pod_aligns_an_unaligned_pod() -> None:
    # s needs two NICs of one zone: its kubelet would reject it, so s is charged to no zone. After the end of p the
    # first zone has two, and s is charged to it.
    cluster = one_nic_left_in_each_zone("single-numa-node")
    decided(cluster, with_nics("s", 1, 2))
    assert free_nics(cluster) == [1, 1]
    released(cluster, "p")
    assert free_nics(cluster) == [0, 1]


@pytest.mark.parametrize("seed", range(4, 8))
def test_warm_equals_rebuilt_after_any_decisions_without_numa_fit(seed: int) -> None:
    draw = random.Random(seed)
    cluster = one_nic_left_in_each_zone(draw.choice(("restricted", "single-numa-node")))
    for number in range(STEPS):
        kind = draw.choice(("decide",) * 6 + ("release",) * 4 + ("grants", "settings"))
        running = Pod.objects.filter(state=State.PLACED.value).order_by("id")
        if kind == "decide":
            decided(cluster, with_nics(f"p{number}", 1, draw.choice((1, 2, 2))))
        elif kind == "release" and running:
            released(cluster, draw.choice(list(running)).name)
        elif kind == "grants":
            report(cluster, grants=_granted(draw, list(running)))
        elif kind == "settings":
            policy = draw.choice(("none", "best-effort", "restricted", "single-numa-node"))
            report(cluster, topology_manager_policy=policy, cpu_manager_policy=draw.choice(("none", "none", "static")))
        cpus_equal_to_rebuilt_state(cluster, f"seed {seed}, step {number}, {kind}: ")


@pytest.mark.parametrize("seed", range(4))
def test_warm_equals_rebuilt_after_any_reports_of_the_cpu_manager(seed: int) -> None:
    draw = random.Random(seed)
    cluster = a_cluster(two_zones() if seed % 2 else two_zones().kubelet("static", "restricted"))
    for number in range(STEPS):
        kind = draw.choice(("reserve", "decide", "release", "grants", "grants", "settings", "zones", "labels"))
        pod = whole(f"p{number}", draw.choice((1, 2)))
        running = Pod.objects.filter(state=State.PLACED.value).order_by("id")
        if kind == "reserve":
            placed(cluster, "n1", pod)
        elif kind == "decide":
            submitted(cluster, pod)
            schedule.run(cluster.pk)
        elif kind == "release" and running:
            released(cluster, draw.choice(list(running)).name)
        elif kind == "grants":
            report(cluster, grants=_granted(draw, list(running)))
        elif kind == "settings":
            report(
                cluster,
                cpu_manager_policy=draw.choice(("static", "none")),
                topology_manager_policy=draw.choice(("none", "restricted", "single-numa-node")),
                reserved_cpus=draw.choice((None, "0", "0,4")),
            )
        elif kind == "zones":
            cpus = draw.choice((("0-3", "4-7"), ("0-1,4-5", "2-3,6-7")))
            zones = two_zones().build().numa.zones  # type: ignore[union-attr]
            pairs = zip(zones, cpus, strict=True)
            report(cluster, zones=tuple(msgspec.structs.replace(zone, cpus=text) for zone, text in pairs))
        else:
            aware = {"topology.crane.io/topology-awareness": draw.choice(("true", "false"))}
            settled(cluster, msgspec.structs.replace(Node.objects.get().report, labels=aware))
        cpus_equal_to_rebuilt_state(cluster, f"seed {seed}, step {number}, {kind}: ")


def _granted(draw: random.Random, running: list[Pod]) -> tuple[KubeletGrant, ...]:
    """Grant CPUs to half of the pods, and one to a pod that the control plane does not know."""
    free = list(range(8))
    draw.shuffle(free)
    grants = []
    for pod in running:
        count = pod.spec.shape.request("cpu") // 1000
        if draw.random() < 0.5 and len(free) > count:
            grants.append(KubeletGrant(pod.uid, ",".join(map(str, sorted(free[:count])))))
            del free[:count]
    if draw.random() < 0.4:
        grants.append(KubeletGrant("uid-of-another", str(free[0]), foreign=True))
    return tuple(grants)
