"""The stored top ranks of a decision equal those of the whole matrix."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.explain.decision_matrix import best, matrix
from hetsched.engine.framework.builtin_policies import BUILTIN
from tests.builders import a_node, a_pod
from tests.unit.engine.draws import NAMESPACES, mixed_fleets, mixed_pods
from tests.unit.engine.fleet import scheduler


@settings(max_examples=40)
@given(mixed_fleets(), mixed_pods(), st.sampled_from(sorted(BUILTIN)), st.integers(1, 4))
def test_rows_totals_and_scores(fleet: list[NodeReport], pods: list[PodSpec], policy: str, limit: int) -> None:
    deciding = scheduler(fleet, policy=policy, namespaces=NAMESPACES)
    for pod in pods:
        expected = tuple(row for row in matrix(deciding, pod) if row.feasible)[:limit]
        assert best(deciding, pod, limit) == expected
        deciding.schedule(pod)


def test_static_scores_are_read_from_the_evaluator(monkeypatch: pytest.MonkeyPatch) -> None:
    deciding = scheduler([a_node("n1"), a_node("n2")], policy="hetsched")
    pod = a_pod("p").build()
    before = best(deciding, pod, 2)
    static = [plugin for plugin in deciding.policy.scores if plugin.static]
    for plugin in static:
        monkeypatch.setattr(plugin.instance, "score", lambda *_: pytest.fail("scored again"))
    assert best(deciding, pod, 2) == before
    assert static
    assert before
