"""Label requirements have Kubernetes' semantics, one by one and over all nodes at once."""

import cProfile
import pstats
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsched.contracts.objects.labels import fits, selects
from hetsched.contracts.objects.node_constraints import Expression, NodeTerm
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.workload import LabelSelector, PreferredNodeTerm, Shape
from hetsched.engine.cluster import selectors, state
from hetsched.engine.cluster.selectors import (
    MOST_NAMED,
    expression_text,
    nodes_named,
    nodes_of_term,
    nodes_of_terms,
    nodes_with,
    required_nodes,
    term_texts,
)
from hetsched.engine.explain.decision_matrix import best
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.explain.nearest_fit import SearchBudget, nearest_fit
from hetsched.engine.framework import scoring
from hetsched.engine.framework.request import width
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import active, built, cluster, scheduler


@pytest.mark.parametrize(
    ("operator", "values", "value", "expected"),
    [
        ("In", ("a", "b"), "b", True),
        ("In", ("a", "b"), "c", False),
        ("In", ("a",), None, False),
        ("NotIn", ("a",), "b", True),
        ("NotIn", ("a",), "a", False),
        ("NotIn", ("a",), None, True),  # a node without the label is not in the set
        ("Exists", (), "", True),
        ("Exists", (), None, False),
        ("DoesNotExist", (), None, True),
        ("DoesNotExist", (), "x", False),
        ("Gt", ("5",), "6", True),
        ("Gt", ("5",), "5", False),
        ("Gt", ("-5",), "-4", True),
        ("Gt", ("9",), "10", True),  # numbers, not texts
        ("Gt", ("5",), None, False),
        ("Gt", ("5",), "six", False),
        ("Gt", ("five",), "6", False),
        ("Gt", ("5",), " 6", False),
        ("Gt", ("5",), "1_000", False),
        ("Gt", ("5",), "9223372036854775807", True),
        ("Gt", ("5",), "9223372036854775808", False),  # not an int64
        ("Gt", ("5", "6"), "7", False),
        ("Lt", ("5",), "4", True),
        ("Lt", ("5",), "5", False),
        ("Lt", ("5",), None, False),
    ],
)
def test_operators(operator: str, values: tuple[str, ...], value: str | None, expected: bool) -> None:
    assert fits(Expression("key", operator, values), value) is expected


def test_null_selector_selects_nothing_and_empty_everything() -> None:
    assert not selects(None, {"app": "a"})
    assert selects(LabelSelector(), {"app": "a"})
    assert selects(LabelSelector(), {})


def test_all_requirements_of_a_selector_must_hold() -> None:
    selector = LabelSelector((Expression("app", "In", ("a",)), Expression("canary", "DoesNotExist")))
    assert selects(selector, {"app": "a"})
    assert not selects(selector, {"app": "a", "canary": "yes"})


def test_empty_node_term_matches_nothing() -> None:
    state = cluster([a_node("n")])
    assert nodes_of_term(state, NodeTerm()).tolist() == [False]
    assert nodes_of_terms(state, ()).tolist() == [False]


def test_terms_are_alternatives_and_their_requirements_conditions() -> None:
    state = cluster([a_node("a").labelled(x="1"), a_node("b").labelled(x="1", y="1"), a_node("c"), a_node("d")])
    both = NodeTerm((Expression("x", "Exists"), Expression("y", "Exists")))
    named = NodeTerm(fields=(Expression("metadata.name", "In", ("c",)),))
    assert nodes_of_terms(state, (both, named)).tolist() == [False, True, True, False]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (Expression("metadata.name", "In", ("b",)), [False, True]),
        (Expression("metadata.name", "NotIn", ("b",)), [True, False]),
        (Expression("metadata.name", "In", ("elsewhere",)), [False, False]),
        (Expression("metadata.name", "Exists"), [False, False]),
        (Expression("metadata.uid", "NotIn", ("b",)), [False, False]),
    ],
)
def test_fields_match_node_names_only(expression: Expression, expected: list[bool]) -> None:
    assert nodes_named(cluster([a_node("a"), a_node("b")]), expression).tolist() == expected


VALUES = st.sampled_from(["", "1", "2", "10", "x"])
EXPRESSIONS = st.one_of(
    st.builds(Expression, st.just("key"), st.sampled_from(["In", "NotIn"]), st.lists(VALUES, min_size=1).map(tuple)),
    st.builds(Expression, st.just("key"), st.sampled_from(["Exists", "DoesNotExist"])),
    st.builds(Expression, st.just("key"), st.sampled_from(["Gt", "Lt"]), VALUES.map(lambda value: (value,))),
)


@given(EXPRESSIONS, st.lists(st.none() | VALUES, min_size=1, max_size=8))
def test_lookup_by_value_equals_a_scan(expression: Expression, labels: list[str | None]) -> None:
    fleet = [a_node(f"n{i}").labelled({} if value is None else {"key": value}) for i, value in enumerate(labels)]
    assert nodes_with(cluster(fleet), expression).tolist() == [fits(expression, value) for value in labels]


# -- the same results as one node at a time, one requirement at a time -----------------------------------------------

LABELS = st.dictionaries(st.sampled_from(["zone", "rack", "disk"]), VALUES, max_size=3)
ON_LABELS = st.builds(
    lambda expression, key: Expression(key, expression.operator, expression.values),
    EXPRESSIONS,
    st.sampled_from(["zone", "rack", "disk", "no-node-has-it"]),
)
ON_NAMES = st.builds(
    Expression,
    st.sampled_from(["metadata.name", "metadata.name", "metadata.uid"]),
    st.sampled_from(["In", "NotIn", "Exists", "Gt"]),
    st.lists(st.sampled_from(["n0", "n1", "elsewhere"]), min_size=1, max_size=2).map(tuple),
)
TERMS = st.builds(NodeTerm, st.lists(ON_LABELS, max_size=3).map(tuple), st.lists(ON_NAMES, max_size=1).map(tuple))


def term_fits(term: NodeTerm, node: NodeReport) -> bool:
    """Evaluate one term on one node, requirement by requirement."""

    def field_fits(field: Expression) -> bool:
        if field.key != "metadata.name" or field.operator not in ("In", "NotIn"):
            return False
        return (node.name in field.values) is (field.operator == "In")

    if not term.expressions and not term.fields:
        return False
    return all(fits(e, node.labels.get(e.key)) for e in term.expressions) and all(map(field_fits, term.fields))


@given(
    st.lists(LABELS, min_size=1, max_size=6),
    st.none() | st.lists(TERMS, max_size=4).map(tuple),
    LABELS.map(lambda labels: tuple(sorted(labels.items()))),
    st.lists(st.builds(PreferredNodeTerm, st.integers(1, 100), TERMS), min_size=1, max_size=3).map(tuple),
)
def test_columns_equal_asking_every_node_alone(
    labels: list[dict[str, str]],
    terms: tuple[NodeTerm, ...] | None,
    selector: tuple[tuple[str, str], ...],
    preferred: tuple[PreferredNodeTerm, ...],
) -> None:
    fleet = [built(a_node(f"n{i}").labelled(**each)) for i, each in enumerate(labels)]
    state = cluster(fleet)
    shape = Shape(node_selector=selector, node_terms=terms, preferred_nodes=preferred)

    def allowed(node: NodeReport) -> bool:
        chosen = all(node.labels.get(key) == value for key, value in selector)
        return chosen and (terms is None or any(term_fits(term, node) for term in terms))

    for _ in range(2):  # the second result is the cached one
        assert required_nodes(state, shape).tolist() == [allowed(node) for node in state.reports]
    scoring = active("node-affinity").instance
    request = state.compile(built(a_pod("p").shaped(preferred_nodes=preferred)))
    scoring.pre_score(request, state)
    weights = [sum(one.weight for one in preferred if term_fits(one.term, node)) for node in state.reports]
    assert scoring.score(request, state.all_rows).tolist() == weights


# -- cost of a pod with many terms ------------------------------------------------------------------------------------


def calls(work: Callable[[], object]) -> int:
    """Return the number of calls of Python and C functions."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def many_terms(pod: int, count: int) -> tuple[NodeTerm, ...]:
    """Return terms that match no node, of two requirements each, one of them on a label that differs on every node."""
    return tuple(
        NodeTerm((Expression("l2", "NotIn", (f"{pod}",)), Expression(f"k{pod}-{i}", "Exists"))) for i in range(count)
    )


@pytest.mark.parametrize("operator", ["In", "NotIn", "Exists", "Gt"])
def test_requirement_cost_is_independent_of_the_node_count(operator: str) -> None:
    values = () if operator == "Exists" else ("7",)
    terms = tuple(NodeTerm((Expression("l", operator, values), Expression(f"k{i}", "Exists"))) for i in range(200))
    took = []
    for nodes in (40, 400):
        state = cluster([a_node(f"n{i:03}").labelled(l=f"{i}") for i in range(nodes)])
        nodes_of_terms(state, terms[:1])  # the columns are built once for an inventory
        took.append(calls(lambda state=state: nodes_of_terms(state, terms)))
    assert took[1] <= took[0] + 10
    assert took[1] < 25 * 2 * len(terms)


def test_decision_with_1700_terms_is_vectorised() -> None:
    """Regression: one decision with reasons on 400 nodes made 2,000,000 calls, one for every distinct value."""
    sched = scheduler([a_node(f"n{i:03}").labelled(l2=f"v{i}") for i in range(400)], policy="default-kube")
    sched.undo(sched.schedule(built(a_pod("first"))))
    pod = built(a_pod("p").shaped(node_terms=many_terms(1, 1700)))
    took = calls(lambda: (best(sched, pod, 5), sched.schedule(pod), diagnose(sched, pod)))
    assert took < 60_000


def test_terms_that_require_an_absent_label_evaluate_no_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: 1,700 such terms on 2,000 nodes took 24 ms for each of 36 pods, and delayed another namespace."""
    state = cluster([a_node("n").labelled(l2="v")])
    evaluated: list[Expression] = []
    monkeypatch.setattr(selectors, "nodes_with", lambda state, item: evaluated.append(item) or np.ones(1, np.bool_))
    assert nodes_of_terms(state, many_terms(1, 1700)).tolist() == [False]
    assert evaluated == []
    absent = Expression("k", "DoesNotExist", ())
    assert nodes_of_terms(state, (NodeTerm((absent,)),)).tolist() == [True]
    assert evaluated == [absent]


def test_unknown_labels_use_no_memory() -> None:
    state = cluster([a_node("n").labelled(disk="ssd")])
    columns = {id(state.label(f"k{number}")[0]) for number in range(100)}
    assert len(columns) == 1
    assert state.label("disk")[0].tolist() == [0]


def test_wide_shapes_replace_many_cached_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: 4,096 shapes of 1,700 terms were cached, 0.8 MiB each."""
    monkeypatch.setattr(scoring, "_KEPT_SHAPES", 100)
    monkeypatch.setattr(scoring, "_KEPT_STATIC", 100)
    monkeypatch.setattr(state, "_COMPILED_LIMIT", 100)
    sched = scheduler([a_node("n")], policy="default-kube")
    wide = [built(a_pod(f"p{pod}").shaped(node_terms=many_terms(pod, 500))) for pod in range(30)]
    for pod in wide:
        sched.schedule(pod)
    plain = [built(a_pod(f"q{number}").cpu(number + 1)) for number in range(50)]
    for pod in plain:
        sched.undo(sched.schedule(pod))
    evaluator = sched.evaluator
    assert width(wide[0].shape) == 11
    assert sum(compiled.width for compiled, _ in evaluator._kept.values()) <= 100
    assert len(evaluator._kept) >= 50  # ordinary shapes are cached as before
    assert len(evaluator._static) <= 120
    assert len(sched.state._compiled) <= 100


def test_nearest_fit_search_is_limited_by_evaluated_terms() -> None:
    sched = scheduler([a_node(f"n{i:03}").labelled(l2=f"v{i}") for i in range(50)], policy="default-kube")
    spent = []
    for count in (2, 1700):
        budget = SearchBudget()
        before = budget.rows
        nearest_fit(sched, built(a_pod("p").shaped(node_terms=many_terms(count, count))), budget)
        spent.append(before - max(budget.rows, 0))
    assert spent[1] > 10 * spent[0]


def test_text_names_the_first_terms_and_counts_the_rest() -> None:
    assert term_texts(many_terms(0, 2)) == ("l2 not in 0 and k0-0", "l2 not in 0 and k0-1")
    assert len(term_texts(many_terms(0, 1700))) == MOST_NAMED + 1
    assert term_texts(many_terms(0, 1700))[-1] == f"{1700 - MOST_NAMED} more"
    values = tuple(f"v{number}" for number in range(1000))
    assert expression_text(Expression("zone", "In", values)).endswith(f"v{MOST_NAMED - 1}, {1000 - MOST_NAMED} more")
