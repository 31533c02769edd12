"""Nearest fit of a gang: the change of all equal members with which enough of them run together."""

from __future__ import annotations

import pytest

from hetsched.contracts.api.decision import NearestFit
from hetsched.contracts.objects.wishes import GROUP_MIN_COUNT, GROUP_MIN_MEMBER
from hetsched.contracts.objects.workload import GangMember
from hetsched.engine.simulation.what_if import what_if
from tests.builders import NodeBuilder, a_node, a_pod
from tests.unit.engine.fleet import cluster, policy_of

POLICY = policy_of("gang-sort", "node-ready", "resource-fit", "least-allocated", "gang")


def answers(nodes: list[NodeBuilder], members: int, cpu: str, least: int) -> list[tuple[NearestFit, ...]]:
    """Return the nearest fits of every unplaced member."""
    pods = [a_pod(f"g-{number}").cpu(cpu).memory(0).gang("g", least).build() for number in range(members)]
    state = cluster(nodes)
    before = state.digest()
    found = what_if(state, POLICY, pods, evaluated_at="")
    assert state.digest() == before
    return [item.nearest_fit for item in found.unplaced]


def test_gang_change_applies_to_all_members_or_the_minimum() -> None:
    # 8 CPUs take two members of 4. Three fit with 8000m / 3 = 2666.67m at most; the node of 2 CPUs takes none of these.
    nodes = [a_node("a").cpu(8), a_node("b").cpu(2)]
    suggestions = answers(nodes, members=3, cpu="4", least=3)
    assert len(suggestions) == 3
    assert all(suggestion == suggestions[0] for suggestion in suggestions)
    assert [(fit.field, fit.from_, fit.to, fit.nodes) for fit in suggestions[0]] == [
        ("pod-group.scheduling.sigs.k8s.io/min-available", "3", "2", ("a",)),
        ("resources.requests.cpu", "4", "2666m", ("a",)),
    ]


@pytest.mark.parametrize(("field", "name"), [(GROUP_MIN_MEMBER, "minMember"), (GROUP_MIN_COUNT, "minCount")])
def test_pod_group_minimum_is_named_by_its_field(field: str, name: str) -> None:
    member = GangMember("g", 3, min_field=field)
    pods = [a_pod(f"g-{number}").cpu("4").memory(0).having(gang=member).build() for number in range(3)]
    found = what_if(cluster([a_node("a").cpu(8)]), POLICY, pods, evaluated_at="")
    fit = found.unplaced[0].nearest_fit[0]
    assert (fit.field, fit.change, fit.from_, fit.to) == (field, f"{name} 3 -> 2", "3", "2")


def test_suggested_change_is_the_smallest_that_places_the_gang() -> None:
    nodes = [a_node("a").cpu(8), a_node("b").cpu(2)]
    assert answers(nodes, members=3, cpu="2666m", least=3) == []
    assert len(answers(nodes, members=3, cpu="2667m", least=3)) == 3
    # Two run, the third is too large: it is rejected alone, not with its gang.
    assert len(answers(nodes, members=3, cpu="4", least=2)) == 1


def test_smaller_gang_is_not_suggested_if_no_member_fits() -> None:
    (first, *_) = answers([a_node("a").cpu(8).cordoned()], members=2, cpu="4", least=2)
    assert first == ()


def test_no_change_is_offered_that_the_gang_plugin_refuses() -> None:
    # Members with different priorities are misconfigured: no amount of memory places them.
    pods = [a_pod(f"g-{n}").cpu(1).memory("1Gi").gang("g", 2).priority(n).build() for n in range(2)]
    found = what_if(cluster([a_node("a").cpu(8)]), POLICY, pods, evaluated_at="")
    assert [item.verdict.value for item in found.unplaced] == ["misconfigured", "misconfigured"]
    assert [item.nearest_fit for item in found.unplaced] == [(), ()]


def test_cpu_of_a_change_is_written_in_cores() -> None:
    found = what_if(cluster([a_node("a").cpu("39900m")]), POLICY, [a_pod("p").cpu("200").build()], evaluated_at="")
    (fit,) = found.unplaced[0].nearest_fit
    assert (fit.change, fit.from_, fit.to) == ("cpu 200 -> 39.9", "200", "39900m")
