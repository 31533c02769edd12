"""The taints plugin: excluded nodes and less preferred nodes."""

import pytest

from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import active, ask, built, cluster, scheduler, score


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_untolerated_hard_taint_excludes_the_node_and_is_named(effect: str) -> None:
    answer = ask("taints", a_pod(), [a_node("clean"), a_node("tainted").tainted("gpu", "a100", effect)])
    assert answer.feasible == ["clean"]
    [refusal] = answer.reasons["tainted"]
    assert (refusal.code, refusal.missing) == ("UntoleratedTaint", (f"gpu=a100:{effect}",))
    assert not refusal.resolvable  # removing pods does not remove a taint


def test_soft_taint_filters_no_pod() -> None:
    assert ask("taints", a_pod(), [a_node("n").tainted("slow", effect="PreferNoSchedule")]).feasible == ["n"]


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        (("gpu", "Equal", "a100", "NoSchedule"), True),
        (("gpu", "Equal", "a100", ""), True),  # an empty effect matches every effect
        (("gpu", "Exists", "", "NoSchedule"), True),  # Exists matches every value
        (("", "Exists", "", ""), True),  # Exists without a key matches every taint
        (("gpu", "Equal", "h100", "NoSchedule"), False),
        (("gpu", "Equal", "", "NoSchedule"), False),
        (("gpu", "Equal", "a100", "NoExecute"), False),
        (("cpu", "Equal", "a100", "NoSchedule"), False),
    ],
)
def test_one_matching_toleration_is_sufficient(toleration: tuple[str, str, str, str], fits: bool) -> None:
    tainted = a_node("n").tainted("gpu", "a100", "NoSchedule")
    assert ask("taints", a_pod().tolerating(*toleration), [tainted]).fits == {"n": fits}


def test_every_hard_taint_needs_its_own_toleration() -> None:
    answer = ask("taints", a_pod().tolerating("a"), [a_node("n").tainted("a").tainted("b")])
    assert [refusal.missing for refusal in answer.reasons["n"]] == [("b:NoSchedule",)]


def test_fewer_untolerated_soft_taints_score_higher() -> None:
    # Untolerated PreferNoSchedule taints: clean 0, one 1, three 3 (largest).
    #   clean 100 - floor(100 * 0/3) = 100;  one 100 - floor(100 * 1/3) = 67;  three 100 - 100 = 0
    three = a_node("three")
    for key in "abc":
        three.tainted(key, effect="PreferNoSchedule")
    node = a_node("one").tainted("a", effect="PreferNoSchedule").tainted("z", effect="NoExecute")
    assert score("taints", a_pod(), [a_node("clean"), node, three]) == {"clean": 100, "one": 67, "three": 0}


def test_tolerated_soft_taints_do_not_count() -> None:
    # Untolerated: n1 1 (largest), n2 0:  n1 100 - 100 = 0, n2 100
    n1 = a_node("n1").tainted("a", effect="PreferNoSchedule").tainted("b", effect="PreferNoSchedule")
    n2 = a_node("n2").tainted("a", effect="PreferNoSchedule")
    assert score("taints", a_pod().tolerating("a"), [n1, n2]) == {"n1": 0, "n2": 100}


def test_score_is_normalised_over_feasible_nodes() -> None:
    # "two" is no candidate, so the largest count is 1:  one 100 - 100 * 1/1 = 0
    node = a_node("one").tainted("a", effect="PreferNoSchedule")
    two = a_node("two").tainted("a", effect="PreferNoSchedule").tainted("b", effect="PreferNoSchedule")
    scores = score("taints", a_pod(), [a_node("clean"), node, two], feasible=["clean", "one"])
    assert scores == {"clean": 100, "one": 0}


def test_scoring_is_skipped_without_soft_taints() -> None:
    assert score("taints", a_pod(), [a_node("n").tainted("a")]) is None


def test_new_taint_sets_after_the_evaluation_are_matched() -> None:
    # The emptied cluster drops condition taints, which makes a taint set that no node had before.
    sick = a_node("n").tainted("keep").tainted("node.kubernetes.io/not-ready", effect="NoExecute")
    state, instance = cluster([sick]), active("taints").instance
    request = state.compile(built(a_pod().tolerating("keep")))
    instance.pre_filter(request, state)
    assert not instance.filter(request, state.all_rows).any()
    empty = state.emptied()
    assert instance.filter(request, empty).all()
    assert list(instance.refusals(request, empty)) == []


def test_next_decision_uses_a_changed_taint() -> None:
    deciding = scheduler([a_node("n").tainted("a")])
    assert deciding.schedule(a_pod().build()).node is None
    deciding.state.apply_report(a_node("n").build())
    assert deciding.schedule(a_pod().build()).node == "n"
