"""The node-affinity plugin: nodeSelector, required and preferred terms, and a node requested by name."""

from hetsched.contracts.objects.node_constraints import Expression, NodeTerm
from hetsched.contracts.objects.workload import PreferredNodeTerm
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import ask, scheduler, score


def term(key: str, operator: str, *values: str) -> NodeTerm:
    return NodeTerm((Expression(key, operator, values),))


FLEET = [
    a_node("fast").labelled(disk="ssd", zone="a"),
    a_node("slow").labelled(disk="hdd", zone="a"),
    a_node("unknown").labelled(zone="b"),
]


def test_node_selector_requires_all_labels() -> None:
    asking = a_pod().on_nodes_with(disk="ssd", zone="a")
    answer = ask("node-affinity", asking, FLEET)
    assert answer.feasible == ["fast"]
    assert [(r.code, r.missing) for r in answer.reasons["slow"]] == [("NodeSelectorMismatch", ("disk=ssd",))]
    assert [r.missing for r in answer.reasons["unknown"]] == [("disk=ssd",), ("zone=a",)]


def test_one_required_term_is_enough() -> None:
    asking = a_pod().shaped(node_terms=(term("disk", "In", "ssd"), term("zone", "In", "b")))
    answer = ask("node-affinity", asking, FLEET)
    assert answer.feasible == ["fast", "unknown"]
    [refusal] = answer.reasons["slow"]
    assert (refusal.code, refusal.missing) == ("NodeAffinityMismatch", ("disk=ssd", "zone=b"))


def test_node_selector_and_terms_must_both_hold() -> None:
    asking = a_pod().on_nodes_with(zone="a").shaped(node_terms=(term("disk", "NotIn", "ssd"),))
    assert ask("node-affinity", asking, FLEET).feasible == ["slow"]


def test_required_affinity_without_terms_fits_nowhere() -> None:
    assert ask("node-affinity", a_pod().shaped(node_terms=()), FLEET).feasible == []


def test_empty_term_matches_no_node() -> None:
    answer = ask("node-affinity", a_pod().shaped(node_terms=(NodeTerm(),)), FLEET)
    assert answer.feasible == []
    assert answer.codes("fast") == ["NodeAffinityMismatch"]


def test_match_fields_pick_nodes_by_name() -> None:
    by_name = NodeTerm(fields=(Expression("metadata.name", "In", ("slow",)),))
    assert ask("node-affinity", a_pod().shaped(node_terms=(by_name,)), FLEET).feasible == ["slow"]


def test_pod_with_a_node_name_fits_only_that_node() -> None:
    answer = ask("node-affinity", a_pod().shaped(required_node="slow"), FLEET)
    assert answer.feasible == ["slow"]
    assert answer.codes("fast") == ["NodeNameMismatch"]
    assert ask("node-affinity", a_pod().shaped(required_node="gone"), FLEET).feasible == []


def test_pod_without_node_rules_skips_filter_and_score() -> None:
    assert ask("node-affinity", a_pod(), FLEET).skipped
    assert score("node-affinity", a_pod(), FLEET) is None


def test_preferred_terms_add_up_and_the_best_node_gets_100() -> None:
    # raw: fast 10 + 5 = 15, slow 5, unknown 0;  fast 100*15/15 = 100, slow floor(100*5/15) = 33, unknown 0
    wishes = (PreferredNodeTerm(10, term("disk", "In", "ssd")), PreferredNodeTerm(5, term("zone", "In", "a")))
    assert score("node-affinity", a_pod().shaped(preferred_nodes=wishes), FLEET) == {
        "fast": 100,
        "slow": 33,
        "unknown": 0,
    }


def test_score_is_normalised_over_feasible_nodes() -> None:
    # fast (15) is no candidate: slow 100*5/5 = 100
    wishes = (PreferredNodeTerm(10, term("disk", "In", "ssd")), PreferredNodeTerm(5, term("zone", "In", "a")))
    asking = a_pod().shaped(preferred_nodes=wishes)
    assert score("node-affinity", asking, FLEET, feasible=["slow", "unknown"]) == {"slow": 100, "unknown": 0}


def test_unmatched_preferences_score_0_everywhere() -> None:
    wishes = (PreferredNodeTerm(10, term("disk", "In", "tape")), PreferredNodeTerm(7, NodeTerm()))
    asking = a_pod().shaped(preferred_nodes=wishes)
    assert score("node-affinity", asking, FLEET) == {"fast": 0, "slow": 0, "unknown": 0}


def test_next_decision_uses_a_changed_label() -> None:
    deciding = scheduler([a_node("n")])
    asking = a_pod().on_nodes_with(disk="ssd").build()
    assert deciding.schedule(asking).node is None
    deciding.state.apply_report(a_node("n").labelled(disk="ssd").build())
    assert deciding.schedule(asking).node == "n"


def test_pods_that_differ_in_one_rule_are_distinguished() -> None:
    # Results are cached per rule: the second pod must not get the first one's.
    deciding = scheduler([a_node("n1").labelled(disk="ssd"), a_node("n2")])
    for number, rule in enumerate(
        (
            {"required_node": "n2"},
            {"required_node": "n1"},
            {"node_selector": (("kubernetes.io/hostname", "n2"),)},
            {"node_selector": (("kubernetes.io/hostname", "n1"),)},
            {"node_terms": (term("disk", "DoesNotExist"),)},
            {"node_terms": (term("disk", "Exists"),)},
            {"preferred_nodes": (PreferredNodeTerm(9, term("disk", "DoesNotExist")),)},
            {"preferred_nodes": (PreferredNodeTerm(9, term("disk", "Exists")),)},
        )
    ):
        outcome = deciding.schedule(a_pod(f"p{number}").best_effort().shaped(**rule).build())
        assert outcome.node == ("n2" if number % 2 == 0 else "n1")
