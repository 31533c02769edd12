"""Permissions of every topic for every role and token, from one table; a topic without a row fails."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser

from hetsched.access.roles import Role
from hetsched.access.subject import Subject
from hetsched.access.tokens import create_token
from hetsched.contracts.errors import InputError
from hetsched.inventory.models import Cluster
from hetsched.placement.models import Workload
from hetsched.placement.queries import topics
from tests.builders import a_pod
from tests.situations import submitted
from web.live import rights, socket_reads

pytestmark = pytest.mark.django_db(transaction=True)
LOOK = {"viewer", "submitter", "operator", "policy-admin"}

# Kind of topic -> access of a token limited to a namespace: to all topics, to those of its namespace, or to none.
TABLE = {
    "cluster": "all",  # node loads, no pods
    "watch": "all",
    "policies": "all",
    "workload": "own",
    "node": "none",  # contains the names of pods that run there
    "decisions": "none",
    "goldens": "none",
    "plans": "none",
}


def test_permission_table_has_exactly_the_topic_kinds(db: Any) -> None:
    with pytest.raises(InputError) as caught:
        topics.resolve_topic("nothing")
    assert set(re.findall(r"([a-z]+)(?::<\w+>)?(?:,|$)", caught.value.hint.removeprefix("Topics: "))) == set(TABLE)


def found(asked: str) -> Any:
    """Return an existing topic by its full name; a topic that does not exist in this scene is returned unchanged."""
    there = socket_reads.find(asked)
    return there if there.denied is None else socket_reads.TopicLookup(asked, asked)


def test_permission_table_matches_responses(cluster: Cluster) -> None:
    ours = submitted(cluster, a_pod("ours", namespace="team"))
    theirs = submitted(cluster, a_pod("theirs", namespace="rest"))
    both = submitted(cluster, a_pod("a", namespace="team"), a_pod("b", namespace="rest"))
    assert Workload.objects.count() == 3
    named = {"cluster": "cluster:lab", "watch": "watch:lab", "node": "node:n1"}
    for role in Role:
        bound = {"cluster": "lab", "node": "n1"} if role == "agent" else {}
        tokens = [create_token(role=role, name="t", namespaces=some, **bound)[0] for some in ([], ["team"])]
        unlimited, limited = (Subject(token.user, token) for token in tokens)

        def may_listen(subject: Subject, topic: str) -> bool:
            there = found(topic)
            return rights.denial_of(subject, there.topic, there.namespaces) is None

        for kind, reach in TABLE.items():
            if kind == "workload":
                allowed = [may_listen(limited, f"workload:{workload.pk}") for workload in (ours, theirs, both)]
                assert allowed == ([True, False, False] if role in LOOK else [False] * 3), role
                assert may_listen(unlimited, f"workload:{both.pk}") is (role in LOOK)
                continue
            topic = named.get(kind, kind)
            assert may_listen(unlimited, topic) is (role in LOOK), (role, kind)
            assert may_listen(limited, topic) is (role in LOOK and reach == "all"), (role, kind)
    assert rights.denial_of(Subject(AnonymousUser()), "cluster:lab", frozenset()) is not None
