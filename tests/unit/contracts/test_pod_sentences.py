"""Sentences that name pods: what their templates write is read back, and only the names at placeholders go."""

from __future__ import annotations

import pytest

from hetsched.contracts.api.decision import Evicted, Reason
from hetsched.contracts.pod_sentences import (
    FILLED,
    HELD_BY_FORCE_DELETED,
    HIDDEN,
    IN_THE_PLACE_OF,
    PENDING,
    POSSIBLE,
    PREEMPTED,
    SHARES_CORE,
    STAYS,
    named,
    redacted,
)


def sees(namespace: str) -> bool:
    return namespace == "own"


@pytest.mark.parametrize(
    ("sentence", "text", "shown"),
    [
        (
            IN_THE_PLACE_OF,
            "own/p placed on n1, score 41.9, in the place of hush/x and 2 more; by requests: it is stale",
            f"own/p placed on n1, score 41.9, in the place of {HIDDEN} and 2 more; by requests: it is stale",
        ),
        (
            IN_THE_PLACE_OF,
            "own/p placed on n1 with cards 0, 1, score 4.0, in the place of hush/x, but was not bound: refused",
            f"own/p placed on n1 with cards 0, 1, score 4.0, in the place of {HIDDEN}, but was not bound: refused",
        ),
        (
            PENDING,
            "own/p waits: it gets its place on n1 once hush/x (priority -5), own/b (priority 3) and 1 more left",
            f"own/p waits: it gets its place on n1 once {HIDDEN} (priority -5), own/b (priority 3) and 1 more left",
        ),
        (STAYS, "hush/x stays: budget hush/b has no room", f"{HIDDEN} stays"),
        (STAYS, "own/x stays: budget own/b has no room", "own/x stays: budget own/b has no room"),
        (
            POSSIBLE,
            "it would fit on n1 without a/b, own/c and 7 more, which are not evicted on this cluster",
            f"it would fit on n1 without {HIDDEN}, own/c and 7 more, which are not evicted on this cluster",
        ),
        (
            HELD_BY_FORCE_DELETED,
            "held by force-deleted pod hush/x, own/c and 2 more until 2026-11-20T10:00:00Z",
            f"held by force-deleted pod {HIDDEN}, own/c and 2 more until 2026-11-20T10:00:00Z",
        ),
        (PREEMPTED, "Preempted by hush/x: exit code 1", f"Preempted by {HIDDEN}: exit code 1"),
        (FILLED, "n1 was filled by hush/x, own/y before", f"n1 was filled by {HIDDEN}"),
        (FILLED, "n1 was filled by hush/x, hus", f"n1 was filled by {HIDDEN}"),
        (
            SHARES_CORE,
            "CPU 1 shares a core with CPU 5 of hush/x, which is idle",
            f"CPU 1 shares a core with CPU 5 of {HIDDEN}, which is idle",
        ),
        (
            SHARES_CORE,
            "CPU 1 shares a core with CPU 5 of kubelet:hush/x, whose load is unknown",
            f"CPU 1 shares a core with CPU 5 of kubelet:{HIDDEN}, whose load is unknown",
        ),
    ],
)
def test_names_at_placeholders_are_hidden(sentence: object, text: str, shown: str) -> None:
    assert redacted(text, sees, sentence) == shown  # type: ignore[arg-type]
    assert redacted(shown, sees, sentence) == shown  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "own/p is misconfigured: hetsched.io/isa: 'hush/x' is no instruction set known here",
        "own/p does not fit now: 2 of 2 nodes: the node is not one with hush/x=true",
        "own/p placed on n1, score 1.0; what library/nginx is built for is not known: linux/amd64",
        "own/p placed on n1, score 1.0; what a, in the place of hush/x is built for is not known: no",
        "container main ended: Preempted by hush/x",
        "",
    ],
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert redacted(text, sees, IN_THE_PLACE_OF, PENDING, PREEMPTED, FILLED) == text


def test_the_first_pods_are_named_and_the_others_counted() -> None:
    pods = [f"a/{number}" for number in range(7)]
    assert named(pods) == "a/0, a/1, a/2, a/3, a/4 and 2 more"
    assert named(pods[:1]) == "a/0"
    assert PENDING.format(node="n", pods=named(pods, 1)) == "it gets its place on n once a/0 and 6 more left"


class TestRedactionOfDocuments:
    def test_reasons_of_preemption_alone_are_read(self) -> None:
        from hetsched.placement.queries.redaction import Redaction

        echo = Reason("NodeAffinity", "node-affinity", 1, "hush/x stays: an expression of the pod")
        own = Reason("PreemptionRefused", "preemption", 0, "hush/x stays: no room")
        assert [one.message for one in Redaction(frozenset({"own"})).reasons((echo, own))] == [
            "hush/x stays: an expression of the pod",
            f"{HIDDEN} stays",
        ]

    def test_a_hidden_pod_takes_its_budget_along(self) -> None:
        from hetsched.placement.queries.redaction import UNLIMITED, Redaction

        evicted = (Evicted("hush/x", "n", 3, "hush/budget"), Evicted("own/y", "n", 3, "own/budget"))
        assert Redaction(frozenset({"own"})).evictions(evicted) == (Evicted(HIDDEN, "n", 3, HIDDEN), evicted[1])
        assert UNLIMITED.evictions(evicted) == evicted
