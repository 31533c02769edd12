"""The topology-spread plugin: the allowed skew, and the score of a smaller skew."""

from typing import Any

from hetsched.contracts.objects.workload import LabelSelector, SpreadConstraint
from hetsched.engine.explain.decision_matrix import matrix
from tests.builders import PodBuilder, a_node, a_pod, matching
from tests.unit.engine.fleet import HOSTNAME, ZONE, active, ask, cluster, policy_of, scheduler, score

A1, A2, B1, NOWHERE = (
    a_node("a1").labelled({ZONE: "a"}),
    a_node("a2").labelled({ZONE: "a"}),
    a_node("b1").labelled({ZONE: "b"}),
    a_node("nowhere"),  # has no zone
)
FLEET = [A1, A2, B1]


def hard(max_skew: int = 1, key: str = ZONE, **more: Any) -> SpreadConstraint:
    return SpreadConstraint(key, max_skew, True, matching(app="web"), **more)


def soft(max_skew: int = 1, key: str = ZONE, **more: Any) -> SpreadConstraint:
    return SpreadConstraint(key, max_skew, False, matching(app="web"), **more)


def web(name: str, *spread: SpreadConstraint) -> PodBuilder:
    return a_pod(name).labelled(app="web").shaped(spread=spread)


def running(**per_node: int) -> list[PodBuilder]:
    return [web(f"{name}-{i}").running_on(name) for name, count in per_node.items() for i in range(count)]


# -- DoNotSchedule -----------------------------------------------------------------------------------------------------


def test_domain_exceeds_the_minimum_by_at_most_max_skew() -> None:
    # zone a 2, zone b 1, least 1:  a 2 + 1 - 1 = 2 > 1 refused;  b 1 + 1 - 1 = 1 fits
    answer = ask("topology-spread", web("p", hard()), FLEET, running(a1=2, b1=1))
    assert answer.feasible == ["b1"]
    [refusal] = answer.reasons["a2"]
    assert (refusal.code, refusal.missing, refusal.resolvable) == ("TopologySpreadSkew", (ZONE,), True)
    assert ask("topology-spread", web("p", hard(2)), FLEET, running(a1=2, b1=1)).feasible == ["a1", "a2", "b1"]


def test_terminating_pods_are_not_counted() -> None:
    # zone a 2 - 1 terminating = 1, zone b 1, least 1:  a 1 + 1 - 1 = 1 fits
    ending = web("ending").running_on("a2").having(terminating=True)
    answer = ask("topology-spread", web("p", hard()), FLEET, [*running(a1=1, b1=1), ending])
    assert answer.feasible == ["a1", "a2", "b1"]
    away = a_pod("p").away_from(ZONE, app="web")
    assert ask("pod-affinity", away, FLEET, [ending]).feasible == ["b1"]  # inter-pod terms still match them


def test_pod_that_does_not_match_itself_is_not_counted() -> None:
    # zone a 2 + 0 - 1 = 1 fits
    answer = ask("topology-spread", a_pod().shaped(spread=(hard(),)), FLEET, running(a1=2, b1=1))
    assert answer.feasible == ["a1", "a2", "b1"]


def test_node_without_the_label_is_unresolvable() -> None:
    answer = ask("topology-spread", web("p", hard()), [*FLEET, NOWHERE])
    assert answer.feasible == ["a1", "a2", "b1"]
    [refusal] = answer.reasons["nowhere"]
    assert (refusal.code, refusal.missing, refusal.resolvable) == ("TopologyLabelMissing", (ZONE,), False)


def test_node_without_one_topology_key_is_not_counted() -> None:
    # nowhere has a hostname but no zone: its 0 pods are no domain "nowhere", so hosts count a1 1, a2 1, b1 1, least 1.
    both = web("p", hard(), hard(key=HOSTNAME))
    assert ask("topology-spread", both, [*FLEET, NOWHERE], running(a1=1, a2=1, b1=2)).feasible == ["a1", "a2"]


def test_fewer_domains_than_asked_count_the_least_as_0() -> None:
    # 2 domains < 3: least 0, a 1 + 1 - 0 = 2 > 1 and b likewise; with minDomains 2 least is 1 and both fit.
    counts = running(a1=1, b1=1)
    assert ask("topology-spread", web("p", hard(min_domains=3)), FLEET, counts).feasible == []
    assert ask("topology-spread", web("p", hard(min_domains=2)), FLEET, counts).feasible == ["a1", "a2", "b1"]


def test_only_pods_of_the_own_namespace_count() -> None:
    others = [a_pod(f"o{i}", "other").labelled(app="web").running_on("a1") for i in range(5)]
    assert ask("topology-spread", web("p", hard()), FLEET, others).feasible == ["a1", "a2", "b1"]


def test_null_and_empty_selectors_count_no_pods() -> None:
    # null: no pod matches, itself included: 0 + 0 - 0. empty: no pod counts but the pod matches itself: 0 + 1 - 0.
    for selector in (None, LabelSelector()):
        constraint = SpreadConstraint(ZONE, 1, True, selector)
        assert ask("topology-spread", web("p", constraint), FLEET, running(a1=5)).feasible == ["a1", "a2", "b1"]


def test_domains_that_the_pod_cannot_use_count_only_if_affinity_is_ignored() -> None:
    # The pod must run in zone a (2 pods). Honoured: a is the only domain, 2 + 1 - 2 = 1 fits.
    # Ignored: zone b (0 pods) counts, 2 + 1 - 0 = 3 > 1.
    zone_a = ((ZONE, "In", ("a",)),)
    counts = running(a1=2)
    honoured = ask("topology-spread", web("p", hard()).node_affinity(zone_a), FLEET, counts)
    assert honoured.fits["a1"]
    ignored = ask("topology-spread", web("p", hard(honor_node_affinity=False)).node_affinity(zone_a), FLEET, counts)
    assert not ignored.fits["a1"]


def test_tainted_domains_count_unless_taints_are_honoured() -> None:
    # b1 is tainted and empty, zone a has 2. Default: least 0, a 2 + 1 - 0 = 3 > 1. Honoured: a alone, 2 + 1 - 2 = 1.
    fleet = [A1, A2, a_node("b1").labelled({ZONE: "b"}).tainted("x")]
    counts = running(a1=2)
    assert not ask("topology-spread", web("p", hard()), fleet, counts).fits["a1"]
    assert ask("topology-spread", web("p", hard(honor_taints=True)), fleet, counts).fits["a1"]


def test_replicas_alternate_between_zones() -> None:
    deciding = scheduler(FLEET)
    placed = [deciding.schedule(web(f"w{i}", hard()).build()).node for i in range(6)]
    zones = ["ab"[name == "b1"] for name in placed if name]
    assert zones.count("a") == zones.count("b") == 3
    assert all(abs(zones[: i + 1].count("a") - zones[: i + 1].count("b")) <= 1 for i in range(6))


# -- ScheduleAnyway ----------------------------------------------------------------------------------------------------


def test_emptier_domains_score_higher() -> None:
    # 2 domains: weight ln 4 = 1.386.  a: 3 pods -> round(4.159 + 0) = 4;  b: 1 pod -> round(1.386) = 1
    # most 4, least 1:  a floor(100 * (4 + 1 - 4) / 4) = 25;  b floor(100 * (4 + 1 - 1) / 4) = 100
    assert score("topology-spread", web("p", soft()), FLEET, running(a1=2, a2=1, b1=1)) == {
        "a1": 25,
        "a2": 25,
        "b1": 100,
    }


def test_hostname_constraint_counts_pods_per_node() -> None:
    # 3 nodes: weight ln 5 = 1.609.  a1 2 -> round(3.219) = 3, a2 1 -> round(1.609) = 2, b1 0 -> 0
    # most 3, least 0:  a1 0;  a2 floor(100 * 1/3) = 33;  b1 100
    asking = web("p", soft(key=HOSTNAME))
    assert score("topology-spread", asking, FLEET, running(a1=2, a2=1)) == {"a1": 0, "a2": 33, "b1": 100}


def test_constraints_are_summed_and_weakened_by_a_wider_skew() -> None:
    # zone (2 domains, ln 4 = 1.3863, skew 3) + hostname (3 nodes, ln 5 = 1.6094, skew 1); pods a1 1, a2 2, b1 1
    #   a1: 3 * 1.3863 + 2 + 1 * 1.6094 + 0 = 7.768 -> 8
    #   a2: 3 * 1.3863 + 2 + 2 * 1.6094     = 9.378 -> 9
    #   b1: 1 * 1.3863 + 2 + 1 * 1.6094     = 4.996 -> 5
    # most 9, least 5: a1 floor(100 * 6/9) = 66, a2 floor(100 * 5/9) = 55, b1 floor(100 * 9/9) = 100
    asking = web("p", soft(3), soft(1, HOSTNAME))
    assert score("topology-spread", asking, FLEET, running(a1=1, a2=2, b1=1)) == {"a1": 66, "a2": 55, "b1": 100}


def test_domains_are_counted_on_feasible_nodes_only() -> None:
    # Zone c is no candidate. 2 domains, ln 4 = 1.386: a 3 pods -> round(4.159) = 4, b 1 pod -> round(1.386) = 1
    #   a floor(100 * (4 + 1 - 4) / 4) = 25.  With 3 domains, ln 5 = 1.609, a would get 5, b 2 and a floor(200/5) = 40.
    fleet = [A1, B1, a_node("c1").labelled({ZONE: "c"})]
    for constraint in (soft(), soft(key=HOSTNAME)):  # each zone has one node, so hosts come out the same
        scores = score("topology-spread", web("p", constraint), fleet, running(a1=3, b1=1), feasible=["a1", "b1"])
        assert scores == {"a1": 25, "b1": 100}


def test_feasible_nodes_come_from_the_cycle() -> None:
    # The same case through a whole cycle, with c1 cordoned: 25 and 100 as above.
    fleet = [A1, B1, a_node("c1").labelled({ZONE: "c"}).cordoned()]
    deciding = scheduler(fleet, running(a1=3, b1=1), policy=policy_of("node-ready", "topology-spread"))
    found = matrix(deciding, web("p", soft()).build())
    assert [(row.name, row.total) for row in found] == [("b1", 100), ("a1", 25), ("c1", None)]


def test_changed_label_invalidates_the_cached_request() -> None:
    # zone a has 1 pod, zone b none: b. When b1 moves to zone a, that is the only zone: 1 + 1 - 1 fits on both.
    state, plugin = cluster([A1, B1], running(a1=1)), active("topology-spread").instance
    request = state.compile(web("p", hard()).build())
    plugin.pre_filter(request, state)
    assert plugin.filter(request, state.all_rows).tolist() == [False, True]
    state.apply_report(a_node("b1").labelled({ZONE: "a"}).build())
    plugin.pre_filter(request, state)
    assert plugin.filter(request, state.all_rows).tolist() == [True, True]
    state.apply_report(a_node("b1").build())
    plugin.pre_filter(request, state)
    assert plugin.filter(request, state.all_rows).tolist() == [True, False]


def test_node_without_the_label_scores_0() -> None:
    # a, b: no pods -> raw 0, most 0 -> 100 each; nowhere lacks the label
    scores = score("topology-spread", web("p", soft()), [*FLEET, NOWHERE])
    assert scores == {"a1": 100, "a2": 100, "b1": 100, "nowhere": 0}


def test_scoring_is_skipped_without_soft_constraints() -> None:
    assert score("topology-spread", web("p", hard()), FLEET, running(a1=3)) is None
    assert ask("topology-spread", web("p", soft()), FLEET, running(a1=3)).skipped
