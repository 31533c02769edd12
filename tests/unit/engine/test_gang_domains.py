"""Gangs in topology domains: the choice of the domain, worked out by hand."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.policy import PluginUse
from hetsched.contracts.objects.workload import GangMember, GangTopology
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.diagnosis import Diagnosis
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.simulation.what_if import what_if
from tests.builders import NodeBuilder, PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import HOSTNAME, cluster, policy_of, scheduler

POLICY = policy_of("gang-sort", "node-affinity", "resource-fit", "pod-affinity", "least-allocated", "gang")
RACK, BLOCK = "rack", "block"
IN_RACK = GangTopology((), (RACK,))


def nodes(racks: str, cpu: int = 2) -> list[NodeBuilder]:
    """Return one node for each letter, n0, n1, ..., in the rack of this name; `-` is a node without the label."""
    return [
        a_node(f"n{number}").cpu(cpu).labelled({} if rack == "-" else {RACK: rack}) for number, rack in enumerate(racks)
    ]


def members(
    name: str, count: int, least: int, topology: GangTopology | None = IN_RACK, *, first: int = 0
) -> list[PodBuilder]:
    gang = GangMember(name, least, topology=topology)
    return [a_pod(f"{name}-{number}").cpu(1).having(gang=gang) for number in range(first, first + count)]


def running(node: str, count: int = 1) -> list[PodBuilder]:
    return [a_pod(f"run-{node}-{number}").cpu(1).running_on(node) for number in range(count)]


def run(deciding: Scheduler, pods: list[PodBuilder]) -> dict[str, Outcome]:
    queue = deciding.policy.queue([pod.build() for pod in pods], deciding.state)
    outcomes = {pod.name: deciding.schedule(pod) for pod in queue}
    deciding.settle()
    return outcomes


def used(outcomes: dict[str, Outcome]) -> list[str]:
    """Return the nodes of the placed pods, in the order of the pods' names."""
    return [outcome.node for _, outcome in sorted(outcomes.items()) if outcome.node is not None]


def racks(deciding: Scheduler, outcomes: dict[str, Outcome], label: str = RACK) -> set[str]:
    state = deciding.state
    return {state.reports[state.row_of[node]].labels.get(label, "-") for node in used(outcomes)}


def explained(deciding: Scheduler, outcomes: dict[str, Outcome]) -> Diagnosis:
    return diagnose(deciding, next(iter(outcomes.values())).pod)


# -- required domains --------------------------------------------------------------------------------------------------


def test_all_members_run_in_one_required_domain() -> None:
    # Without the constraint, least-allocated would use one node of each rack first.
    deciding = scheduler(nodes("abab"), policy=POLICY)
    assert racks(deciding, run(deciding, members("g", 4, 4, None))) == {"a", "b"}
    deciding = scheduler(nodes("abab"), policy=POLICY)
    outcomes = run(deciding, members("g", 4, 4))
    assert (len(used(outcomes)), racks(deciding, outcomes)) == (4, {"a"})


def test_domain_with_the_least_sufficient_capacity_is_selected() -> None:
    # Free: a 4, b 3, c 2. Three members fit b exactly; then four members need a.
    deciding = scheduler(nodes("aabbcc"), [*running("n2"), *running("n4"), *running("n5")], policy=POLICY)
    outcomes = run(deciding, [*members("g", 3, 3), *members("h", 4, 4)])
    assert {name: outcome.node for name, outcome in outcomes.items() if name.startswith("g")} == {
        "g-0": "n3", "g-1": "n2", "g-2": "n3",
    }  # fmt: skip
    assert racks(deciding, {name: outcome for name, outcome in outcomes.items() if name.startswith("h")}) == {"a"}
    # Gangs of one queue see each other: only c has capacity left, for two members.
    assert used(run(deciding, members("i", 3, 3))) == []
    assert len(used(run(deciding, members("i", 2, 2)))) == 2


def test_all_pending_members_are_preferred_to_the_minimum() -> None:
    # a: 3 free, b: 4 free. With a minimum of 3, a would be the tightest domain, but all four fit b.
    deciding = scheduler(nodes("aabb"), running("n0"), policy=POLICY)
    assert racks(deciding, run(deciding, members("g", 4, 3))) == {"b"}
    # Five members fit no rack: b holds most of them.
    deciding = scheduler(nodes("aabb"), running("n0"), policy=POLICY)
    outcomes = run(deciding, members("g", 5, 3))
    assert (len(used(outcomes)), racks(deciding, outcomes)) == (4, {"b"})
    # Without a required level, all five run in both racks.
    deciding = scheduler(nodes("aabb"), running("n0"), policy=POLICY)
    outcomes = run(deciding, members("g", 5, 3, GangTopology((RACK,))))
    assert (len(used(outcomes)), racks(deciding, outcomes)) == (5, {"a", "b"})


def test_nodes_that_a_filter_rejects_are_not_counted() -> None:
    # a has 4 free CPUs, but only one node has the disk that the members select; b has two such nodes.
    fleet = nodes("aabbb")
    for position in (0, 2, 3):
        fleet[position] = fleet[position].labelled(disk="ssd")
    deciding = scheduler(fleet, policy=POLICY)
    outcomes = run(deciding, [pod.on_nodes_with(disk="ssd") for pod in members("g", 4, 4)])
    assert used(outcomes) == ["n2", "n3", "n2", "n3"]


def test_domain_that_fails_the_trial_is_skipped() -> None:
    # Members repel each other from their node. By amounts, a (one node, 3 CPUs) is tighter than b (three nodes).
    fleet = [*nodes("a", cpu=3), *(a_node(f"m{n}").cpu(2).labelled({RACK: "b"}) for n in range(3))]
    pods = [pod.labelled(app="g").away_from(HOSTNAME, app="g") for pod in members("g", 3, 3)]
    deciding = scheduler(fleet, policy=POLICY)
    assert sorted(used(run(deciding, pods))) == ["m0", "m1", "m2"]


def test_domains_of_one_name_are_distinguished_by_wider_levels() -> None:
    # Rack 1 exists in both blocks: each has 2 CPUs.
    fleet = [a_node(f"n{n}").cpu(2).labelled({RACK: "1", BLOCK: block}) for n, block in enumerate("xy")]
    deciding = scheduler(fleet, policy=POLICY)
    assert racks(deciding, run(deciding, members("g", 3, 3)), BLOCK) == {"x", "y"}
    deciding = scheduler(fleet, policy=POLICY)
    topology = GangTopology((), (RACK, BLOCK))
    assert used(run(deciding, members("g", 3, 3, topology))) == []
    assert len(set(used(run(deciding, members("g", 2, 2, topology))))) == 1


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_refusal_names_the_nearest_domain_and_its_reasons() -> None:
    # Free: a 3, b 2; five members of at least four.
    deciding = scheduler(nodes("aab-", cpu=2), running("n0"), policy=POLICY)
    before = deciding.state.digest()
    outcomes = run(deciding, members("g", 5, 4))
    assert used(outcomes) == []
    assert deciding.state.digest() == before
    found = explained(deciding, outcomes)
    assert found.verdict is Verdict.NOT_NOW
    assert [(reason.code, reason.nodes) for reason in found.reasons] == [
        ("GangNoDomain", 4),
        ("InsufficientResource", 2),
    ]
    assert found.reasons[0].missing == (RACK,)
    assert found.reasons[0].message.startswith(
        "gang default/g needs capacity for 4 members in one domain of rack, but the nearest domain a has capacity for 3"
    )
    assert [wait.text for wait in found.waits_for] == [
        "capacity for 4 members of the gang in one domain of rack at the same time"
    ]


def test_gang_larger_than_every_empty_domain_never_fits() -> None:
    deciding = scheduler(nodes("aabb"), policy=POLICY)
    found = explained(deciding, run(deciding, members("g", 5, 5)))
    assert (found.verdict, found.reasons[0].code) == (Verdict.NEVER_FITS, "GangNoDomain")
    assert "even on the empty cluster no domain has it" in found.summary


def test_label_that_no_node_has_never_fits() -> None:
    deciding = scheduler(nodes("--"), policy=POLICY)
    found = explained(deciding, run(deciding, members("g", 2, 2)))
    assert (found.verdict, found.reasons[0].code) == (Verdict.NEVER_FITS, "GangNoDomain")
    assert "no node has the label rack" in found.summary


def test_members_with_different_topologies_are_misconfigured() -> None:
    deciding = scheduler(nodes("aa"), policy=POLICY)
    outcomes = run(deciding, [*members("g", 1, 2), *members("g", 1, 2, GangTopology((RACK,)), first=1)])
    found = explained(deciding, outcomes)
    assert (found.verdict, found.reasons[0].code) == (Verdict.MISCONFIGURED, "GangMixed")
    assert "preferred rack, required rack" in found.summary


def test_limit_of_trials_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rack a (one node) fails after two attempts; the budget of the gang's three members is then used up by rack b.
    monkeypatch.setattr("hetsched.engine.gangs.domain_choice._MOST_ATTEMPTS", 1)
    fleet = [
        *nodes("a", cpu=3),
        *(a_node(f"m{n}").cpu(4).labelled({RACK: "b"}) for n in range(1)),
        *(a_node(f"o{n}").cpu(2).labelled({RACK: "c"}) for n in range(3)),
    ]
    pods = [pod.labelled(app="g").away_from(HOSTNAME, app="g") for pod in members("g", 3, 3)]
    deciding = scheduler(fleet, policy=POLICY)
    outcomes = run(deciding, pods)
    assert used(outcomes) == []
    assert "not all domains were tried because of the limit of 1 trials" in explained(deciding, outcomes).summary


# -- preferred levels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "expected"), [(2, {("a", "x")}), (4, {("a", "x"), ("b", "x")}), (7, {("a", "x"), ("b", "x"), ("c", "y")})]
)
def test_lowest_preferred_level_that_fits_is_used(count: int, expected: set[tuple[str, str]]) -> None:
    # Racks of 2 CPUs: a and b in block x, c and d in block y, of which d is full.
    fleet = [
        a_node(f"n{n}").cpu(2).labelled({RACK: rack, BLOCK: block})
        for n, (rack, block) in enumerate([("a", "x"), ("b", "x"), ("c", "y"), ("d", "y")])
    ]
    deciding = scheduler(fleet, running("n3", 1), policy=POLICY)
    pods = members("g", count, count, GangTopology((RACK, BLOCK)))
    if count == 2:
        deciding = scheduler(fleet[:2], policy=POLICY)
    outcomes = run(deciding, pods)
    assert len(used(outcomes)) == count
    labels = [deciding.state.reports[deciding.state.row_of[node]].labels for node in used(outcomes)]
    found = {(each[RACK], each[BLOCK]) for each in labels}
    assert expected <= found
    if count == 4:
        assert found == expected


def test_preferred_level_within_the_required_level() -> None:
    # Block x: racks a (1 CPU) and b (1 CPU); block y: rack c (1 CPU). Two members fit no rack, but block x.
    fleet = [
        a_node(f"n{n}").cpu(1).labelled({RACK: rack, BLOCK: block})
        for n, (rack, block) in enumerate([("a", "x"), ("b", "x"), ("c", "y")])
    ]
    topology = GangTopology((RACK,), (BLOCK,))
    deciding = scheduler(fleet, policy=POLICY)
    assert racks(deciding, run(deciding, members("g", 2, 2, topology)), BLOCK) == {"x"}
    deciding = scheduler(fleet, policy=POLICY)
    assert used(run(deciding, members("g", 3, 3, topology))) == []


# -- placed members ----------------------------------------------------------------------------------------------------


def placed(name: str, least: int, places: Iterable[str], topology: GangTopology | None = IN_RACK) -> list[PodBuilder]:
    pods = members(name, len(list(places)), least, topology, first=90)
    return [pod.running_on(node) for pod, node in zip(pods, places, strict=True)]


def test_replacement_stays_in_the_domain_of_the_placed_members() -> None:
    # b is tighter, but the gang runs in a.
    deciding = scheduler(nodes("aab"), placed("g", 2, ["n0"]), policy=POLICY)
    assert used(run(deciding, members("g", 1, 2))) == ["n1"]


def test_additional_member_waits_for_the_domain_of_its_gang() -> None:
    # The gang has its minimum. Rack a is full: the further member is not placed in b.
    deciding = scheduler(nodes("ab"), [*placed("g", 2, ["n0", "n0"])], policy=POLICY)
    outcomes = run(deciding, members("g", 1, 2))
    assert used(outcomes) == []
    found = explained(deciding, outcomes)
    assert {(reason.code, reason.nodes) for reason in found.reasons} == {("InsufficientResource", 1), ("GangDomain", 1)}
    assert found.verdict is Verdict.NOT_NOW


def test_incomplete_gang_names_the_domain_of_its_members() -> None:
    deciding = scheduler(nodes("ab", cpu=4), [*placed("g", 4, ["n0"]), *running("n0", 2)], policy=POLICY)
    found = explained(deciding, run(deciding, members("g", 3, 4)))
    assert found.reasons[0].message.startswith(
        "gang default/g needs capacity for 3 more members in the domain a of rack, in which its other members run, but "
        "the domain has capacity for 1"
    )


@pytest.mark.parametrize(
    ("fleet", "places", "part"),
    [("ab", ["n0", "n1"], "do not run in one domain of rack (a, b)"), ("a-", ["n1"], "has no label rack")],
)
def test_placed_members_outside_one_domain_block_the_gang(fleet: str, places: list[str], part: str) -> None:
    deciding = scheduler(nodes(fleet), placed("g", 2, places), policy=POLICY)
    outcomes = run(deciding, members("g", 1, 2))
    found = explained(deciding, outcomes)
    assert (used(outcomes), found.reasons[0].code) == ([], "GangDomainSplit")
    assert part in found.summary


def test_members_of_an_unregistered_gang_follow_the_first() -> None:
    # a: 2 CPUs, b: 4 CPUs. The first of three members selects b, because a cannot hold three.
    deciding = scheduler(nodes("abb"), policy=policy_of(*_with_patience()))
    outcomes = {pod._pod.name: deciding.schedule(pod.build()) for pod in members("g", 3, 3)}
    assert (len(used(outcomes)), racks(deciding, outcomes)) == (3, {"b"})
    assert not any(outcome.is_waiting for outcome in outcomes.values())


def _with_patience() -> list[PluginUse | str]:
    return ["gang-sort", "resource-fit", "least-allocated", PluginUse("gang", params={"gap_percent": 100})]


# -- what-if -----------------------------------------------------------------------------------------------------------


def test_what_if_places_the_gang_in_one_domain() -> None:
    pods = [pod.build() for pod in members("g", 3, 3)]
    state = cluster(nodes("abab"))
    found = what_if(state, POLICY, pods, evaluated_at="", explain=True)
    assert {placement.node for placement in found.placements} == {"n0", "n2"}
    # The matrix shows nodes of the other rack as infeasible, with the reason.
    assert found.nodes is not None
    other = next(row for row in found.nodes if row.name == "n1")
    assert other.refused is not None
    assert (other.feasible, other.refused.code) == (False, "GangDomain")
    refused = what_if(state, POLICY, [pod.build() for pod in members("g", 5, 5)], evaluated_at="")
    assert refused.verdict is Verdict.NEVER_FITS
    assert "domain of rack" in refused.summary
