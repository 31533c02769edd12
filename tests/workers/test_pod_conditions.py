"""A pod's condition names no pod of another namespace, which its tenant may not see."""

from __future__ import annotations

import pytest

from hetsched.contracts.message import Message
from hetsched.placement.actions.evictions import ClaimedEviction
from hetsched.placement.models import Eviction, Nomination, Pod
from hetsched.placement.queries.redaction import Redaction
from workers.report import _sentence


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [("ml", "placed on n1, replacing ml/b"), ("web", "placed on n1, replacing {hidden}")],
)
def test_victims_are_named_in_their_own_namespace_alone(namespace: str, expected: str) -> None:
    hidden = "(a pod of another namespace)"
    placed = Message("placed on {node}", node="n1")
    summary = Message("{detail}, replacing {pods}", detail=placed, pods="ml/b")
    assert _sentence(Redaction(frozenset({namespace})), summary, "running", "") == expected.format(hidden=hidden)


def test_pod_that_filled_the_node_is_not_named_in_another_namespace() -> None:
    filled = Message("{node} was filled by {pods} before the pod was bound", node="n1", pods="ml/b")
    found = _sentence(
        Redaction(frozenset({"web"})), Message("{pod} placed on {node}", pod="web/a", node="n1"), "pending", filled
    )
    assert (
        found == "web/a placed on n1, but was not bound: n1 was filled by (a pod of another namespace) "
        "before the pod was bound"
    )


@pytest.mark.parametrize(("namespace", "name"), [("web", "web/high"), ("ml", "(a pod of another namespace)")])
def test_preemptor_is_named_only_in_its_own_namespace(namespace: str, name: str) -> None:
    victim, preemptor = Pod(namespace=namespace, name="low", priority=0), Pod(namespace="web", name="high", priority=9)
    leaving = ClaimedEviction(Eviction(nomination=Nomination()), victim, preemptor, "n1")
    assert leaving.sentence == f"Preempted by {name} (priority 9), which needs resources on n1; this pod has priority 0"
