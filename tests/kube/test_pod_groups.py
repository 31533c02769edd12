"""Kubernetes' own pod groups on a real API server: members wait, and are placed and bound together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.connections.connection import from_kubeconfig
from hetsched.inventory.models import Cluster, Node
from hetsched.placement import scheduler_cache
from hetsched.placement.models import Decision, Nomination, Pod
from hetsched.placement.queries.invariants import check_invariants
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from tests.kube.control_plane import ControlPlane
from tests.kube.feature_gates import DISRUPTION_MODES, GANGS, GROUPS, IN_WORKLOADS, enabled, serving
from tests.kube.scene import an_informer, eventually, make, make_node, make_pod, pod_of, states
from tests.kube.test_preemption_evictions import budget, is_leaving, kubelet_ends, run_on
from workers import evict, report, schedule

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]


@pytest.fixture(scope="module")
def native() -> Iterator[ControlPlane]:
    with ControlPlane(enabled(*GANGS), serving(GROUPS.api_version)) as running:
        yield running


@pytest.fixture
def api(native: ControlPlane) -> Api:
    """Return an administrator's client of that API server, without nodes, pods and groups."""
    groups = GROUPS.path(namespace="default")
    for path in ("/api/v1/nodes", "/api/v1/namespaces/default/pods?gracePeriodSeconds=0", groups):
        native.call("DELETE", path)
    return Api(from_kubeconfig(native.kubeconfig()))


@pytest.fixture
def followed(api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Informer]:
    """Run an informer for a cluster with one node of 8 CPUs."""
    monkeypatch.setattr(binding_cycle, "api_of", lambda _: api)
    scheduler_cache.cache_of(cluster.pk).invalidate()
    make_node(api, "n1")
    follower = an_informer(api, cluster)
    eventually(follower, lambda: Node.objects.count() == 1)
    yield follower
    follower.ended.set()


def make_group(api: Api, name: str, members: int, **more: Any) -> None:
    policy = {"gang": {"minCount": members}}
    spec = {"podGroups": [{"name": "all", "policy": policy}]} if IN_WORKLOADS else {"schedulingPolicy": policy, **more}
    make(api, GROUPS, name, "default", spec=spec)


def make_member(api: Api, group: str, number: int, cpu: str = "1", **more: Any) -> None:
    reference: dict[str, Any] = {"schedulingGroup": {"podGroupName": group}}
    if IN_WORKLOADS:
        reference = {"workloadRef": {"name": group, "podGroup": "all"}}
    make_pod(api, f"{group}-{number}", cpu=cpu, **reference, **more)


def decide(follower: Informer, cluster: Cluster) -> None:
    follower._write_sync()
    schedule.run(cluster.pk)


def grouped(name: str, members: int) -> bool:
    group = f"{name}.all" if IN_WORKLOADS else name
    found = Cluster.objects.get().definitions.pod_groups.get(f"default/{group}")
    return found is not None and found.min_member == members


def test_members_wait_for_the_minimum_of_their_group(api: Api, cluster: Cluster, followed: Informer) -> None:
    make_group(api, "ring", 3)
    eventually(followed, lambda: grouped("ring", 3))
    for number in range(2):
        make_member(api, "ring", number)
    make_pod(api, "alone")
    eventually(followed, lambda: len(states()) == 3)
    decide(followed, cluster)
    assert states() == {"ring-0": "not-now", "ring-1": "not-now", "alone": "placed"}
    binding_cycle.run(cluster.pk)
    assert "nodeName" not in pod_of(api, "ring-0")["spec"]
    make_member(api, "ring", 2)
    eventually(followed, lambda: "ring-2" in states())
    Pod.objects.filter(state="not-now").update(queued=True, not_before=None)
    decide(followed, cluster)
    binding_cycle.run(cluster.pk)
    assert [pod_of(api, f"ring-{number}")["spec"].get("nodeName") for number in range(3)] == ["n1"] * 3
    assert check_invariants() == []


def test_group_that_does_not_fit_reserves_nothing(api: Api, cluster: Cluster, followed: Informer) -> None:
    make_group(api, "wide", 3)
    eventually(followed, lambda: grouped("wide", 3))
    for number in range(3):
        make_member(api, "wide", number, cpu="3")  # 9 CPUs of 8
    eventually(followed, lambda: len(states()) == 3)
    decide(followed, cluster)
    assert set(states().values()) <= {"not-now", "never-fits"}
    make_pod(api, "big", cpu="7")
    eventually(followed, lambda: "big" in states())
    decide(followed, cluster)
    assert states()["big"] == "placed"
    assert check_invariants() == []


def test_members_may_precede_their_group(api: Api, cluster: Cluster, followed: Informer) -> None:
    for number in range(2):
        make_member(api, "late", number)
    eventually(followed, lambda: len(states()) == 2)
    decide(followed, cluster)
    assert "placed" not in states().values()
    make_group(api, "late", 2)
    eventually(followed, lambda: {pod.spec.gang.min_available for pod in Pod.objects.all() if pod.spec.gang} == {2})
    Pod.objects.filter(state="not-now").update(queued=True, not_before=None)
    decide(followed, cluster)
    assert set(states().values()) == {"placed"}


def test_members_run_in_one_topology_domain(api: Api, cluster: Cluster, followed: Informer) -> None:
    # n1 has no rack. Nodes have 8 CPUs: two members of 3 CPUs fit one node, four fit the two nodes of rack b.
    for number, rack in enumerate("abb", start=2):
        make_node(api, f"n{number}", rack=rack)
    eventually(followed, lambda: Node.objects.count() == 4)
    make_group(api, "near", 4, schedulingConstraints={"topology": [{"key": "rack"}]})
    eventually(followed, lambda: grouped("near", 4))
    for number in range(4):
        make_member(api, "near", number, cpu="3")
    eventually(followed, lambda: len(states()) == 4)
    decide(followed, cluster)
    binding_cycle.run(cluster.pk)
    nodes = [pod_of(api, f"near-{number}")["spec"].get("nodeName") for number in range(4)]
    assert sorted(nodes) == ["n3", "n3", "n4", "n4"], Decision.objects.first()
    make_group(api, "apart", 3, schedulingConstraints={"topology": [{"key": "rack"}]})
    eventually(followed, lambda: grouped("apart", 3))
    for number in range(3):
        make_member(api, "apart", number, cpu="3")
    eventually(followed, lambda: len(states()) == 7)
    decide(followed, cluster)
    # n1 and n2 have capacity for four members, but not in one rack.
    assert {state for name, state in states().items() if name.startswith("apart")} == {"not-now"}
    (reason, *_) = Decision.objects.get(pod_name="apart-0").reasons
    assert reason.code == "GangNoDomain"
    assert "the nearest domain a has capacity for 2" in reason.message
    assert check_invariants() == []


def start_pair(api: Api, follower: Informer, cluster: Cluster, prefix: str) -> None:
    """Place and bind the two pending pods with numbered names, and let the kubelet report them as running."""
    decide(follower, cluster)
    binding_cycle.run(cluster.pk)
    for number in range(2):
        run_on(api, f"{prefix}-{number}")
    eventually(follower, lambda: set(states().values()) == {"running"})


@pytest.mark.parametrize(("mode", "victims"), [("Single", 1), ("All", 2)])
def test_disruption_mode_decides_whether_members_are_evicted_alone(
    api: Api, cluster: Cluster, followed: Informer, monkeypatch: pytest.MonkeyPatch, mode: str, victims: int
) -> None:
    # The node has 8 CPUs, and each member uses 4: the pod of 4 CPUs needs one victim.
    monkeypatch.setattr(evict, "api_of", lambda _: api)
    group = mode.lower()
    make_group(api, group, 2, disruptionMode=DISRUPTION_MODES[mode])
    eventually(followed, lambda: grouped(group, 2))
    for number in range(2):
        make_member(api, group, number, cpu="4")
    eventually(followed, lambda: len(states()) == 2)
    start_pair(api, followed, cluster, group)
    make_pod(api, "urgent", cpu="4", priorityClassName="system-node-critical")
    eventually(followed, lambda: "urgent" in states())
    decide(followed, cluster)
    assert evict.run(cluster.pk) == victims
    assert sum(is_leaving(api, f"{group}-{number}") for number in range(2)) == victims
    for number in range(2):
        if is_leaving(api, f"{group}-{number}"):
            kubelet_ends(api, f"{group}-{number}")
    eventually(followed, lambda: list(states().values()).count("running") == 2 - victims)
    decide(followed, cluster)
    assert states()["urgent"] == "placed"
    assert check_invariants() == []


def preempting(api: Api, follower: Informer, cluster: Cluster, group: str) -> None:
    """Fill the node of 8 CPUs with two pods, and decide a group of two members with 4 CPUs and a higher priority."""
    for number in range(2):
        make_pod(api, f"low-{number}", cpu="4", labels={"app": f"low-{number}"})
    eventually(follower, lambda: len(states()) == 2)
    start_pair(api, follower, cluster, "low")
    make_group(api, group, 2)
    eventually(follower, lambda: grouped(group, 2))
    for number in range(2):
        make_member(api, group, number, cpu="4", priorityClassName="system-node-critical")
    eventually(follower, lambda: len(states()) == 4)
    decide(follower, cluster)


def test_group_starts_after_the_deletion_of_its_victims(
    api: Api, cluster: Cluster, followed: Informer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for worker in (evict, report):
        monkeypatch.setattr(worker, "api_of", lambda _: api)
    preempting(api, followed, cluster, "starting")
    report.run(cluster.pk)
    members = [f"starting-{number}" for number in range(2)]
    assert [pod_of(api, name)["status"].get("nominatedNodeName") for name in members] == ["n1", "n1"]
    assert evict.run(cluster.pk) == 2
    kubelet_ends(api, "low-0")
    eventually(followed, lambda: states()["low-0"] in ("failed", "cancelled"))
    decide(followed, cluster)
    assert {states()[name] for name in members} == {"not-now"}
    kubelet_ends(api, "low-1")
    eventually(followed, lambda: states()["low-1"] in ("failed", "cancelled"))
    decide(followed, cluster)
    binding_cycle.run(cluster.pk)
    assert [pod_of(api, name)["spec"].get("nodeName") for name in members] == ["n1", "n1"]
    assert check_invariants() == []


def test_budget_of_one_victim_protects_all_victims_of_a_group(
    api: Api, cluster: Cluster, followed: Informer, monkeypatch: pytest.MonkeyPatch, native: ControlPlane
) -> None:
    monkeypatch.setattr(evict, "api_of", lambda _: api)
    budget(api, "guard", "low-1", allowed=0)
    preempting(api, followed, cluster, "blocked")
    assert Nomination.objects.filter(active=True).count() == 2
    assert evict.run(cluster.pk) == 0
    assert [is_leaving(api, f"low-{number}") for number in range(2)] == [False, False]
    assert not Nomination.objects.filter(active=True).exists()
    Pod.objects.filter(state="not-now").update(queued=True, not_before=None)
    decide(followed, cluster)
    assert evict.run(cluster.pk) == 0
    assert set(states().values()) == {"running", "not-now"}
    assert check_invariants() == []
    native.call("DELETE", "/apis/policy/v1/namespaces/default/poddisruptionbudgets")


def test_group_of_one_starts_alone(api: Api, cluster: Cluster, followed: Informer) -> None:
    make_group(api, "one", 1)
    eventually(followed, lambda: grouped("one", 1))
    make_member(api, "one", 0)
    eventually(followed, lambda: states() == {"one-0": "pending"})
    decide(followed, cluster)
    assert states() == {"one-0": "placed"}, Decision.objects.get().reasons
