"""After any sequence of events no CPU and no GPU is in two exclusive grants."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.objects.node_report import CardLink, NodeReport, PowerReport, Usage
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.compiled.batch import BatchScheduler
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import compile_policy
from hetsched.engine.numa.zones_at_risk import overcommitted
from tests.builders import NodeBuilder, PodBuilder, a_card, a_node, a_pod
from tests.unit.engine.fleet import REGISTRY

EXCLUSIVE = ("exclusive", "immovable", "static")
ROWS = st.integers(0, 2)


def machine(name: str, manager: str, topology: str) -> NodeBuilder:
    node = a_node(name).cpu(8).zone("node-0", "0-3", siblings="0,2;1,3").zone("node-1", "4-7", siblings="4,6;5,7")
    pair = (CardLink(2, "nvlink", 50.0),)
    cards = (a_card(0, numa_zone="node-0", links=pair), a_card(1, numa_zone="node-0"), a_card(2, numa_zone="node-1"))
    return node.kubelet(manager, topology, reserved="0").having(gpus=cards, power=PowerReport("on", 2000))


def fleet() -> list[NodeReport]:
    return [
        machine("n0", "none", "single-numa-node").build(),
        machine("n1", "none", "none").build(),
        machine("n2", "static", "restricted").build(),
    ]


def _pod(cpus: int, policy: str, aware: bool | None, cards: int, milli: int, watts: int | None) -> PodBuilder:
    pod = a_pod().guaranteed().cpu(cpus).memory("64Mi").numa(aware, policy).shaped(expected_watts=watts)
    return pod.gpu(1 if milli < 1000 else cards, milli=milli) if cards else pod


pods = st.builds(
    _pod,
    st.integers(1, 4),
    st.sampled_from(["exclusive", "exclusive", "immovable", "numa", "none"]),
    st.sampled_from([None, True, False]),
    st.integers(0, 2),
    st.sampled_from([1000, 1000, 400]),
    st.sampled_from([None, 300]),
)


class Anything(RuleBasedStateMachine):
    """Three nodes: two pinned by us, one by its kubelet."""

    @initialize(policy=st.sampled_from(["hetsched", "cassini", "binpack"]))
    def start(self, policy: str) -> None:
        self.scheduler = Scheduler(ClusterState(fleet()), compile_policy(BUILTIN[policy], REGISTRY))
        self.batches = BatchScheduler(self.scheduler, expected=10**9, shortest=1)
        self.count = 0

    @property
    def state(self) -> ClusterState:
        return self.scheduler.state

    @rule(wanted=st.lists(pods, min_size=1, max_size=4), together=st.booleans())
    def come(self, wanted: list[PodBuilder], together: bool) -> None:
        short = {(zone.node, zone.zone) for zone in overcommitted(self.state)}
        named = [pod.having(name=f"p{self.count + number}").build() for number, pod in enumerate(wanted)]
        self.count += len(named)
        outcomes = self.batches.schedule(named) if together else [self.scheduler.schedule(pod) for pod in named]
        for outcome in outcomes:
            zones = () if outcome.allocation.cpu_policy == "static" else outcome.allocation.zones
            assert not {(outcome.node, zone.name) for zone in zones} & short

    @precondition(lambda self: self.state.placed_pods)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.state.placed_pods)))
        self.state.forget(key)
        self.scheduler.waiting_pods.remove(key)

    @rule(row=ROWS, cpu=st.integers(0, 8000))
    def measure(self, row: int, cpu: int) -> None:
        self.report(msgspec.structs.replace(self.state.reports[row], usage=Usage({"cpu": cpu}, "2026-11-20T10:00:00Z")))

    @rule(row=ROWS, zone=st.integers(0, 1), left=st.none() | st.integers(0, 4000))
    def lend(self, row: int, zone: int, left: int | None) -> None:
        report = self.state.reports[row]
        assert report.numa is not None
        zones = list(report.numa.zones)
        zones[zone] = msgspec.structs.replace(zones[zone], offline_capacity_millis=left)
        self.report(msgspec.structs.replace(report, numa=msgspec.structs.replace(report.numa, zones=tuple(zones))))

    @rule(row=ROWS, card=st.integers(0, 2), healthy=st.booleans())
    def change_gpu_health(self, row: int, card: int, healthy: bool) -> None:
        report = self.state.reports[row]
        cards = list(report.gpus or ())
        cards[card] = msgspec.structs.replace(cards[card], healthy=healthy)
        self.report(msgspec.structs.replace(report, gpus=tuple(cards)))

    def report(self, report: NodeReport) -> None:
        held = {key: placed.allocation for key, placed in self.state.placed_pods.items()}
        self.state.apply_report(report)
        assert {key: placed.allocation for key, placed in self.state.placed_pods.items()} == held

    @invariant()
    def nothing_is_assigned_twice(self) -> None:
        for row, placed_pods in enumerate(self.state.on_row):
            cpus: Counter[int] = Counter()
            cards: Counter[int] = Counter()
            for placed in placed_pods.values():
                if placed.allocation.cpu_policy in EXCLUSIVE:
                    cpus.update(cpu for zone in placed.allocation.zones for cpu in parse_cpuset(zone.cpus or ""))
                cards.update({card.index: card.milli for card in placed.allocation.gpus})
            assert all(count == 1 for count in cpus.values()), self.state.reports[row].name
            assert 0 not in cpus  # reserved for the system
            assert all(milli <= 1000 for milli in cards.values())
            assert all(len(holders) == 1 for holders in self.state.zones.held.get(row, {}).values())


TestAnything = Anything.TestCase
TestAnything.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
