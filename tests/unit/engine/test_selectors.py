"""Label requirements mean what they mean in Kubernetes, one by one and over all nodes at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsched.contracts.labels import fits, selects
from hetsched.contracts.workload import Expression, LabelSelector, NodeTerm
from hetsched.engine.cluster.selectors import nodes_named, nodes_of_term, nodes_of_terms, nodes_with
from tests.builders import a_node
from tests.unit.engine.fleet import cluster


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


def test_a_null_selector_selects_nothing_and_an_empty_one_everything() -> None:
    assert not selects(None, {"app": "a"})
    assert selects(LabelSelector(), {"app": "a"})
    assert selects(LabelSelector(), {})


def test_all_requirements_of_a_selector_must_hold() -> None:
    selector = LabelSelector((Expression("app", "In", ("a",)), Expression("canary", "DoesNotExist")))
    assert selects(selector, {"app": "a"})
    assert not selects(selector, {"app": "a", "canary": "yes"})


def test_a_term_without_requirements_matches_nothing() -> None:
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
def test_the_look_up_by_value_equals_asking_every_node(expression: Expression, labels: list[str | None]) -> None:
    fleet = [a_node(f"n{i}").labelled({} if value is None else {"key": value}) for i, value in enumerate(labels)]
    assert nodes_with(cluster(fleet), expression).tolist() == [fits(expression, value) for value in labels]
