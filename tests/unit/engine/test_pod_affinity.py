"""The pod-affinity plugin: required and preferred affinity and anti-affinity."""

from typing import Any

import numpy as np

from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.node_constraints import Expression
from hetsched.contracts.objects.workload import LabelSelector, PodSpec, PodTerm
from hetsched.engine.framework.scoring import INFEASIBLE
from tests.builders import PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import HOSTNAME, ZONE, ask, built, policy_of, scheduler, score

A1, A2, B1, NOWHERE = (
    a_node("a1").labelled({ZONE: "a"}),
    a_node("a2").labelled({ZONE: "a"}),
    a_node("b1").labelled({ZONE: "b"}),
    a_node("nowhere"),  # has no zone
)
FLEET = [A1, A2, B1, NOWHERE]


def web(name: str, on: str = "", **shape: Any) -> PodBuilder:
    return pod(name, on, app="web").shaped(**shape)


def pod(name: str = "p", on: str = "", *, namespace: str = "default", **labels: str) -> PodBuilder:
    return a_pod(name, namespace).labelled(**labels).running_on(on)


def near(*apps: str, key: str = ZONE, weight: int = 0, **more: Any) -> tuple[PodTerm, ...]:
    return (PodTerm(key, LabelSelector((Expression("app", "In", apps),)), weight=weight, **more),)


def test_required_affinity_fits_the_domains_of_matching_pods() -> None:
    answer = ask("pod-affinity", pod().shaped(affinity=near("web")), FLEET, [web("w", on="a1")])
    assert answer.feasible == ["a1", "a2"]
    [refusal] = answer.reasons["b1"]
    assert (refusal.code, refusal.missing, refusal.resolvable) == ("PodAffinityMismatch", (ZONE,), False)


def test_pod_on_a_node_without_the_topology_key_is_ignored() -> None:
    answer = ask("pod-affinity", pod().shaped(affinity=near("web")), FLEET, [web("w", on="nowhere")])
    assert answer.feasible == []


def test_one_pod_must_match_all_required_terms() -> None:
    # "w" matches the first term and "x" the second: neither matches both, so no pod counts for either term.
    both = (*near("web", "x"), PodTerm(ZONE, LabelSelector((Expression("tier", "Exists"),))))
    running = [web("w", on="a1"), pod("x", tier="1", on="b1")]
    assert ask("pod-affinity", pod().shaped(affinity=both), FLEET, running).feasible == []
    running.append(pod("y", app="x", tier="1", on="b1"))
    assert ask("pod-affinity", pod().shaped(affinity=both), FLEET, running).feasible == ["b1"]


def test_terms_may_be_met_in_different_domains_of_different_keys() -> None:
    # The only matching pod runs on a1: zone a is a1 and a2, host a1 is a1 alone.
    both = (*near("web"), *near("web", key=HOSTNAME))
    assert ask("pod-affinity", pod().shaped(affinity=both), FLEET, [web("w", on="a1")]).feasible == ["a1"]


def test_first_pod_of_a_self_affine_group_fits_any_labelled_node() -> None:
    assert ask("pod-affinity", web("first", affinity=near("web")), FLEET).feasible == ["a1", "a2", "b1"]


def test_first_pod_that_does_not_match_its_own_term_waits() -> None:
    assert ask("pod-affinity", pod().shaped(affinity=near("web")), FLEET).feasible == []


def test_self_affinity_exception_ends_when_a_member_is_placed() -> None:
    assert ask("pod-affinity", web("second", affinity=near("web")), FLEET, [web("w", on="b1")]).feasible == ["b1"]


def test_self_affinity_exception_applies_while_members_are_in_no_domain() -> None:
    answer = ask("pod-affinity", web("second", affinity=near("web")), FLEET, [web("w", on="nowhere")])
    assert answer.feasible == ["a1", "a2", "b1"]


def test_required_anti_affinity_refuses_the_domains_of_matching_pods() -> None:
    answer = ask("pod-affinity", pod().shaped(anti_affinity=near("web")), FLEET, [web("w", on="a1")])
    assert answer.feasible == ["b1", "nowhere"]
    [refusal] = answer.reasons["a2"]
    assert (refusal.code, refusal.missing, refusal.resolvable) == ("PodAntiAffinityConflict", (ZONE,), True)


def test_each_anti_affinity_term_is_independent() -> None:
    apart = (*near("web"), *near("db", key=HOSTNAME))
    running = [web("w", on="b1"), pod("d", app="db", on="a1")]
    assert ask("pod-affinity", pod().shaped(anti_affinity=apart), FLEET, running).feasible == ["a2", "nowhere"]


def test_anti_affinity_of_running_pods_is_respected() -> None:
    jealous = pod("jealous", on="a1").shaped(anti_affinity=near("web"))
    answer = ask("pod-affinity", web("p"), FLEET, [jealous])
    assert answer.feasible == ["b1", "nowhere"]
    assert answer.codes("a2") == ["ExistingPodAntiAffinity"]
    assert answer.reasons["a2"][0].resolvable


def test_anti_affinity_of_running_pods_ignores_unmatched_pods() -> None:
    assert ask("pod-affinity", pod(), FLEET, [pod("jealous", on="a1").shaped(anti_affinity=near("web"))]).skipped


def test_term_defaults_to_its_pods_namespace() -> None:
    elsewhere = pod("w", namespace="team", app="web", on="a1")
    assert ask("pod-affinity", pod().shaped(affinity=near("web")), FLEET, [elsewhere]).feasible == []
    named = near("web", namespaces=("team",))
    assert ask("pod-affinity", pod().shaped(affinity=named), FLEET, [elsewhere]).feasible == ["a1", "a2"]


def test_named_namespaces_replace_the_own_one() -> None:
    named = near("web", namespaces=("team",))
    assert ask("pod-affinity", pod().shaped(anti_affinity=named), FLEET, [web("w", on="a1")]).feasible == [
        "a1", "a2", "b1", "nowhere",
    ]  # fmt: skip


def test_namespace_selector_matches_namespace_labels() -> None:
    selected = near("web", namespace_selector=LabelSelector((Expression("env", "In", ("prod",)),)))
    running = [
        pod("w", namespace="live", app="web", on="a1"),
        pod("v", namespace="lab", app="web", on="b1"),
        pod("u", app="web", on="b1"),  # the pod's own namespace is no exception
    ]
    namespaces = {"live": {"env": "prod"}, "lab": {"env": "test"}}
    answer = ask("pod-affinity", pod().shaped(affinity=selected), FLEET, running, namespaces=namespaces)
    assert answer.feasible == ["a1", "a2"]


def test_changed_namespace_labels_change_the_matches() -> None:
    selected = near("web", namespace_selector=LabelSelector((Expression("env", "In", ("prod",)),)))
    running = [pod("w", namespace="live", app="web", on="a1"), pod("v", on="b1").shaped(anti_affinity=selected)]
    deciding = scheduler(FLEET, running, policy=policy_of("pod-affinity"))
    friend, foe = built(pod().shaped(affinity=selected)), built(pod("q", namespace="live", app="web"))

    def feasible(spec: PodSpec) -> list[str]:
        _, total = deciding.evaluator.evaluate(deciding.state.compile(spec))
        return [deciding.state.reports[row].name for row in np.flatnonzero(total != INFEASIBLE)]

    assert (feasible(friend), feasible(foe)) == ([], ["a1", "a2", "b1", "nowhere"])
    deciding.state.redefine(ClusterContent(namespaces={"live": {"env": "prod"}}))
    assert (feasible(friend), feasible(foe)) == (["a1", "a2"], ["a1", "a2", "nowhere"])


def test_empty_namespace_selector_matches_every_namespace() -> None:
    everywhere = near("web", namespace_selector=LabelSelector())
    elsewhere = pod("w", namespace="undeclared", app="web", on="b1")
    assert ask("pod-affinity", pod().shaped(affinity=everywhere), FLEET, [elsewhere]).feasible == ["b1"]


def test_namespace_has_its_name_as_a_label() -> None:
    by_name = near("web", namespace_selector=LabelSelector((Expression("kubernetes.io/metadata.name", "In", ("x",)),)))
    elsewhere = pod("w", namespace="x", app="web", on="b1")
    assert ask("pod-affinity", pod().shaped(affinity=by_name), FLEET, [elsewhere]).feasible == ["b1"]


def test_null_selector_matches_no_pod() -> None:
    null_selector = (PodTerm(ZONE),)
    assert ask("pod-affinity", pod().shaped(affinity=null_selector), FLEET, [web("w", on="a1")]).feasible == []
    assert ask("pod-affinity", pod().shaped(anti_affinity=null_selector), FLEET, [web("w", on="a1")]).feasible == [
        "a1", "a2", "b1", "nowhere",
    ]  # fmt: skip


def test_preferred_terms_score_by_the_matching_pods_of_a_domain() -> None:
    # Weight 10 per web pod in the zone: zone a has 1 -> 10, zone b has 3 -> 30, no zone -> 0.
    #   a1, a2: floor(100 * (10 - 0) / (30 - 0)) = 33;  b1: 100;  nowhere: 0
    running = [web("w1", on="a1"), web("w2", on="b1"), web("w3", on="b1"), web("w4", on="b1"), web("w5", on="nowhere")]
    asking = pod().shaped(preferred_affinity=near("web", weight=10))
    assert score("pod-affinity", asking, FLEET, running) == {"a1": 33, "a2": 33, "b1": 100, "nowhere": 0}


def test_preferred_anti_affinity_has_a_weight_below_0() -> None:
    # a: -5, b: -10, nowhere: 0; least -10, most 0:  a floor(100 * 5 / 10) = 50, b 0, nowhere 100
    running = [web("w1", on="a1"), web("w2", on="b1"), web("w3", on="b1")]
    asking = pod().shaped(preferred_affinity=near("web", weight=-5))
    assert score("pod-affinity", asking, FLEET, running) == {"a1": 50, "a2": 50, "b1": 0, "nowhere": 100}


def test_shares_of_the_scale_are_rounded_as_kube_scheduler_does() -> None:
    # Raw 0, 29, 100: 100 * (29 / 100) is 28.999... in binary floating point, so 28; 100 * 29 / 100 would give 29.
    running = [
        pod("fan", on="a1").shaped(preferred_affinity=near("web", key=HOSTNAME, weight=29)),
        pod("devotee", on="b1").shaped(preferred_affinity=near("web", key=HOSTNAME, weight=100)),
    ]
    assert score("pod-affinity", web("p"), FLEET, running) == {"a1": 28, "a2": 0, "b1": 100, "nowhere": 0}


def test_only_feasible_nodes_span_the_scale() -> None:
    # Without b1 the raw scores are a 10, nowhere 0: a 100, nowhere 0.
    running = [web("w1", on="a1"), web("w2", on="b1"), web("w3", on="b1")]
    asking = pod().shaped(preferred_affinity=near("web", weight=10))
    assert score("pod-affinity", asking, FLEET, running, feasible=["a1", "a2", "nowhere"]) == {
        "a1": 100, "a2": 100, "nowhere": 0,
    }  # fmt: skip


def test_preferences_of_running_pods_count_too() -> None:
    # fan: +20 in zone a. foe: -20 in zone b. Least -20, most 20: nowhere floor(100 * 20/40) = 50.
    running = [
        pod("fan", on="a1").shaped(preferred_affinity=near("web", weight=20)),
        pod("foe", on="b1").shaped(preferred_affinity=near("web", weight=-20)),
    ]
    assert score("pod-affinity", web("p"), FLEET, running) == {"a1": 100, "a2": 100, "b1": 0, "nowhere": 50}


def test_required_affinity_of_running_pods_has_the_hard_weight() -> None:
    # follower requires web in zone b: +1. fan prefers it in zone a: +4. a floor(100*4/4) = 100, b floor(100*1/4) = 25
    running = [
        pod("follower", on="b1").shaped(affinity=near("web")),
        pod("fan", on="a1").shaped(preferred_affinity=near("web", weight=4)),
    ]
    expected = {"a1": 100, "a2": 100, "b1": 25, "nowhere": 0}
    assert score("pod-affinity", web("p"), FLEET, running) == expected
    # With hard weight 8: b 8, a 4 -> b 100, a 50. With 0 the follower does not count.
    doubled = score("pod-affinity", web("p"), FLEET, running, params={"hard_weight": 8})
    assert doubled == {"a1": 50, "a2": 50, "b1": 100, "nowhere": 0}
    ignored = score("pod-affinity", web("p"), FLEET, running, params={"hard_weight": 0})
    assert ignored == {"a1": 100, "a2": 100, "b1": 0, "nowhere": 0}


def test_scoring_is_skipped_without_preferences() -> None:
    assert score("pod-affinity", web("p"), FLEET, [web("w", on="a1")]) is None
    unmet = pod().shaped(preferred_affinity=near("web", weight=1))
    assert score("pod-affinity", unmet, FLEET) is None
    unmeant = [pod("fan", on="a1").shaped(preferred_affinity=near("web", weight=4))]
    assert score("pod-affinity", pod(), FLEET, unmeant) is None


def test_equal_preferences_score_0_everywhere() -> None:
    running = [web("w1", on="a1"), web("w2", on="b1")]
    asking = pod().shaped(preferred_affinity=near("web", weight=3))
    assert score("pod-affinity", asking, [A1, A2, B1], running) == {"a1": 0, "a2": 0, "b1": 0}


def test_replicas_apart_fill_one_domain_each_and_the_next_one_waits() -> None:
    deciding = scheduler([A1, A2, B1])
    apart = near("web", key=HOSTNAME)
    placed = [deciding.schedule(web(f"w{i}", anti_affinity=apart).build()).node for i in range(4)]
    assert sorted(filter(None, placed)) == ["a1", "a2", "b1"]
    assert placed[3] is None
    deciding.state.forget("default/w1")
    assert deciding.schedule(web("w4", anti_affinity=apart).build()).node == placed[1]


def test_affinity_of_a_pod_ends_with_the_pod() -> None:
    deciding = scheduler([A1], [pod("jealous", on="a1").shaped(anti_affinity=near("web"))])
    assert deciding.schedule(web("w").build()).node is None
    deciding.state.forget("default/jealous")
    assert deciding.schedule(web("w").build()).node == "a1"
