"""Random histories of a cluster state with pods, reports and copies; the columns always add up."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.allocation import EMPTY
from hetsched.contracts.objects.cluster import ElasticQuota
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.columns import USAGE_RESOURCES
from hetsched.engine.cluster.expected_use import LearntUse, UsageHistory
from hetsched.engine.cluster.selector_counts import Matcher
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.plugins.capacity.resource_fit import MOST_UNKNOWN
from tests.builders import a_node, a_pod, matching
from tests.unit.engine.draws import NAMESPACES, mixed_fleets, mixed_pods
from tests.unit.engine.fleet import built, cluster, policy_of, rebuilt


def contents(state: ClusterState) -> dict[str, Any]:
    """Return everything in a cluster state in comparable form."""
    rules = state.neighbours
    return {
        "static": state.columns.static.tobytes(),
        "load": state.columns.load.tobytes(),
        "rows": [sorted(row) for row in state.on_row],
        "placed_pods": {key: (b.row, b.pod, b.allocation) for key, b in state.placed_pods.items()},
        "rules": (rules.repelling, rules.attracting, rules.preferring),
        "ports": {port: held for port, held in rules.ports.items() if held},
        "cpus": {row: dict(held) for row, held in state.zones.held.items()},
    }


class Life(RuleBasedStateMachine):
    """A cluster state and its expected content."""

    @initialize(fleet=mixed_fleets(), pods=mixed_pods())
    def start(self, fleet: list[NodeReport], pods: list[PodSpec]) -> None:
        self.state = ClusterState(fleet, (), NAMESPACES)
        self.pods = pods

    @rule(pick=st.integers(0, 11), row=st.integers(0, 6))
    def a_pod_is_assumed(self, pick: int, row: int) -> None:
        pod = self.pods[pick % len(self.pods)]
        if pod.key not in self.state.placed_pods and self.cards_left(pod, row % len(self.state.reports)):
            self.state.assume(self.state.compile(pod), row % len(self.state.reports))

    def cards_left(self, pod: PodSpec, row: int) -> bool:
        """Return whether the pod gets its GPUs; a pod without them would take some when the state is rebuilt."""
        demand = pod.shape.gpu
        free = self.state.columns.field("card_milli_free")[:, row]
        return demand is None or int((free >= demand.milli).sum()) >= demand.count

    @precondition(lambda self: self.state.placed_pods)
    @rule(pick=st.integers(0, 11))
    def a_pod_is_forgotten(self, pick: int) -> None:
        key = sorted(self.state.placed_pods)[pick % len(self.state.placed_pods)]
        placed = self.state.forget(key)
        assert placed is not None
        assert self.state.forget(key) is None

    @rule(pick=st.integers(0, 11), row=st.integers(0, 6))
    def assuming_and_forgetting_leaves_no_trace(self, pick: int, row: int) -> None:
        pod = self.pods[pick % len(self.pods)]
        if pod.key in self.state.placed_pods:
            return
        request = self.state.compile(pod)
        before, digest = contents(self.state), self.state.digest()
        self.state.assume(request, row % len(self.state.reports))
        self.state.forget(pod.key)
        assert contents(self.state) == before
        assert self.state.digest() == digest

    @rule(row=st.integers(0, 6), cpu=st.integers(0, 9000), ready=st.booleans(), label=st.sampled_from("xy"))
    def a_node_reports(self, row: int, cpu: int, ready: bool, label: str) -> None:
        old = self.state.reports[row % len(self.state.reports)]
        new = msgspec.structs.replace(
            old, allocatable={**old.allocatable, "cpu": cpu}, ready=ready, labels={**old.labels, "rack": label}
        )
        epoch = self.state.epoch
        assert self.state.fits_layout(new)
        self.state.apply_report(new)
        assert self.state.epoch > epoch

    @rule(pick=st.integers(0, 11), row=st.integers(0, 6))
    def a_copy_is_independent(self, pick: int, row: int) -> None:
        before, digest = contents(self.state), self.state.digest()
        copy = self.state.fork()
        assert contents(copy) == before
        assert copy.digest() == digest
        for key in list(copy.placed_pods):
            copy.forget(key)
        request = copy.compile(msgspec.structs.replace(self.pods[pick % len(self.pods)], name="stranger"))
        copy.assume(request, row % len(copy.reports))
        copy.apply_report(msgspec.structs.replace(copy.reports[0], ready=not copy.reports[0].ready))
        self.count_matching_pods(copy)
        assert contents(self.state) == before
        assert self.state.digest() == digest

    @invariant()
    def load_equals_the_sum_of_assumed_pods(self) -> None:
        state, again = self.state, rebuilt(self.state)
        zones = ("zone_cpu_free", "zone_memory_free", "zone_cpus_free")
        for field in ("requested", "nonzero", "card_milli_free", "card_memory_free", *zones):
            found, expected = state.columns.field(field), again.columns.field(field)
            if field == "requested":  # a state keeps the row of a resource that a pod requested once
                assert found[len(again.resources) :].sum() == 0
                found = found[: len(again.resources)]
            assert found.tolist() == expected.tolist()
        unmeasured = state.columns.field("measured") == 0
        used, requested = state.columns.field("used"), np.zeros_like(state.columns.field("used"))
        for position, name in enumerate(USAGE_RESOURCES):
            if name in state.resources.index:
                requested[position] = state.columns.field("requested")[state.resources.index[name]]
        assert (used[unmeasured] == requested[unmeasured]).all()

    @invariant()
    def rules_between_pods_are_those_of_the_bookings(self) -> None:
        again = rebuilt(self.state)
        for part in ("rules", "ports", "rows", "cpus"):
            assert contents(self.state)[part] == contents(again)[part]

    @invariant()
    def counts_of_matching_pods_are_those_of_a_fresh_scan(self) -> None:
        self.count_matching_pods(self.state)

    def count_matching_pods(self, state: ClusterState) -> None:
        web = Matcher(matching(app="web"), ("default",))
        terms = [(pod, term) for pod in self.pods for term in (*pod.shape.affinity, *pod.shape.anti_affinity)]
        for matcher in (web, *(Matcher.of(term, pod.namespace) for pod, term in terms)):
            counts = state.neighbours.matching(state, (matcher,))
            scanned = [sum(matcher.matches(b.pod, NAMESPACES) for b in row.values()) for row in state.on_row]
            assert counts.tolist() == scanned


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@given(mixed_fleets(), mixed_pods(), st.randoms(use_true_random=False))
def test_equal_contents_have_equal_digests(fleet: list[NodeReport], pods: list[PodSpec], shuffler: Any) -> None:
    state, other = ClusterState(fleet), ClusterState(reversed(fleet))
    # The GPUs of a pod, and its CPUs under a pinning kubelet, depend on the earlier pods.
    plain = [pod for pod in pods if pod.shape.gpu is None and not pod.shape.guaranteed]
    for pod in plain:
        state.assume(state.compile(pod), 0)
    shuffler.shuffle(plain)
    for pod in plain:
        other.assume(other.compile(pod), 0)
    assert state.digest() == other.digest()


_NODES_AND_POD = ([a_node("a").build(), a_node("b").build()], [a_pod("p").running_on("a").build()])


def test_every_part_of_the_contents_is_in_the_digest() -> None:
    base = cluster([a_node("a"), a_node("b")], [a_pod("p").running_on("a")])
    others = [
        cluster([a_node("a"), a_node("b").labelled(disk="ssd")], [a_pod("p").running_on("a")]),
        cluster([a_node("a")], [a_pod("p").running_on("a")]),
        cluster([a_node("a"), a_node("b")], [a_pod("p").running_on("b")]),
        cluster([a_node("a"), a_node("b")], [a_pod("q").running_on("a")]),
        cluster([a_node("a"), a_node("b")], [a_pod("p").cpu("2").running_on("a")]),
        cluster([a_node("a"), a_node("b")], [a_pod("p").labelled(app="web").running_on("a")]),
        cluster([a_node("a"), a_node("b")], [a_pod("p").priority(1).running_on("a")]),
        cluster([a_node("a"), a_node("b")], [a_pod("p").gang("team", 1).running_on("a")]),
        cluster([a_node("a"), a_node("b")], [a_pod("p").created_at("2026-11-20T10:00:00Z").running_on("a")]),
        cluster([a_node("a"), a_node("b")], [a_pod("p").having(preemptible=False).running_on("a")]),
        ClusterState(*_NODES_AND_POD, quotas=[ElasticQuota("default", "q")]),
        ClusterState(*_NODES_AND_POD, experience=UsageHistory({"default/Job/j": LearntUse((("cpu", 100),), 5)})),
        cluster([a_node("a"), a_node("b")], [a_pod("p").running_on("a")], {"default": {"env": "prod"}}),
        cluster([a_node("a"), a_node("b")]),
    ]
    assert len({state.digest() for state in (base, *others)}) == len(others) + 1


def test_pod_is_assumed_once() -> None:
    state = cluster([a_node("a"), a_node("b")])
    request = state.compile(built(a_pod()))
    state.assume(request, 0)
    before = contents(state)
    with pytest.raises(ValueError, match="default/pod is already placed"):
        state.assume(request, 1)
    assert contents(state) == before


def test_running_pods_of_unknown_nodes_are_kept_apart() -> None:
    state = cluster([a_node("a")], [a_pod("lost").running_on("gone"), a_pod("here").running_on("a")])
    assert [pod.name for pod in state.orphans] == ["lost"]
    assert list(state.placed_pods) == ["default/here"]


def test_new_resource_widens_the_columns_and_keeps_reservations() -> None:
    state = cluster([a_node("a")], [a_pod("p").cpu("2").running_on("a")])
    rows = len(state.resources)
    request = state.compile(built(a_pod("q").requesting("example.com/fpga", 1)))
    assert len(state.resources) == rows + 1
    state.assume(request, 0)
    requested = state.columns.field("requested")[:, 0]
    assert requested[state.resources.index["cpu"]] == 3000  # 2 CPU of p + 1 CPU of q
    assert requested[state.resources.index["example.com/fpga"]] == 1
    state.forget("default/p")
    state.forget("default/q")
    assert not state.columns.load.any()


def test_resources_that_no_node_has_share_one_row() -> None:
    """Regression: a row for each of 1,500 names in a pod took 70 MiB on 2,000 nodes for each new pod."""
    state = cluster([a_node("a")], [a_pod("r").requesting("example.com/running", 3).running_on("a")])
    rows, epoch = len(state.resources), state.epoch
    for number in range(20):
        wide = a_pod(f"p{number}")
        for name in range(30):
            wide = wide.requesting(f"example.com/r{number}-{name}", 2)
        pod = built(wide)
        found = diagnose(Scheduler(state, policy_of("resource-fit")), pod)
        assert found.verdict is Verdict.NEVER_FITS
        assert found.reasons[0].message == f"Insufficient example.com/r{number}-0: 2 requested"
        assert len(found.reasons) == MOST_UNKNOWN
    assert (len(state.resources), state.epoch) == (rows, epoch)
    request = state.compile(pod)
    state.assume(request, 0)
    assert state.columns.field("requested")[state.resources.index["example.com/other"], 0] == 3 + 60
    state.forget(pod.key)
    state.forget("default/r")
    assert not state.columns.load.any()


def test_recorded_allocations_are_kept() -> None:
    state = cluster([a_node("a").gpus(2)])
    placed = state.assume(state.compile(built(a_pod().gpu(1))), 0, EMPTY)
    assert [(card.index, card.milli, card.memory_mib) for card in placed.allocation.gpus] == [(0, 1000, 40960)]
    assert state.columns.field("card_milli_free")[:, 0].tolist() == [0, 1000]


def test_requested_amounts_belong_to_the_requested_resources() -> None:
    state = ClusterState([a_node("n1").build()])
    pod = a_pod("p").cpu(0).memory("1Gi").build()
    compiled = state.compile(pod).compiled
    found = dict(zip(compiled.needs_rows.tolist(), compiled.needs.tolist(), strict=True))
    wanted = {name: amount for name, amount in pod.shape.requests if amount}  # without the CPU, of which 0 is requested
    assert found == {state.resources.index[name]: amount for name, amount in wanted.items()}
    assert found[state.resources.index["memory"]] == 2**30
