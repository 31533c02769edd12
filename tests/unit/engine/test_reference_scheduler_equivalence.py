"""Whole cycles against an oracle without caches, node by node and pod by pod."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster import selector_counts, state
from hetsched.engine.framework.scoring import INFEASIBLE
from tests.unit.engine.draws import NAMESPACES, fleets, pod_lists
from tests.unit.engine.fleet import scheduler
from tests.unit.engine.oracle import Oracle


@settings(max_examples=150)
@given(fleets(), pod_lists(), st.data())
def test_cycles_have_equal_nodes_totals_and_selections(
    fleet: list[NodeReport], pods: list[PodSpec], data: st.DataObject
) -> None:
    live(fleet, pods, data)


@settings(max_examples=50)
@given(fleets(), pod_lists(), st.data())
def test_equal_after_logs_and_journals_restart(
    fleet: list[NodeReport], pods: list[PodSpec], data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "_LOG_LIMIT", 3)
        patch.setattr(selector_counts, "_MOST_ENTRIES", 4)
        live(fleet, pods, data)


def live(fleet: list[NodeReport], pods: list[PodSpec], data: st.DataObject) -> None:
    """Place the pods one after the other, while some end."""
    deciding, oracle = scheduler(fleet, namespaces=NAMESPACES), Oracle(fleet, NAMESPACES)
    names = deciding.state.columns.names
    for pod in pods:
        fitting = oracle.feasible(pod)
        expected = dict.fromkeys(names, INFEASIBLE) | (oracle.totals(pod, fitting) if fitting else {})
        _, totals = deciding.evaluator.evaluate(deciding.state.compile(pod))
        found = dict(zip(names, totals.tolist(), strict=True))
        # A score that is the same on every feasible node may be omitted by one side: only differences decide.
        assert _shifted(found) == _shifted(expected)
        assert deciding.schedule(pod).node == oracle.schedule(pod)
        if oracle.placed and data.draw(st.booleans(), label="a pod leaves"):
            leaving = data.draw(st.sampled_from([placed.key for placed, _ in oracle.placed]))
            deciding.state.forget(leaving)
            oracle.forget(leaving)


def _shifted(totals: dict[str, float]) -> dict[str, float]:
    best = max(totals.values())
    return {name: total - best if best > INFEASIBLE else total for name, total in totals.items()}
