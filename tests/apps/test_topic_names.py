"""Clients name topics as the contract does; a node's short name is resolved."""

from __future__ import annotations

import pytest

from hetsched.contracts.errors import InputError
from hetsched.placement.queries.topics import find_node, resolve_topic, snapshot
from tests.builders import a_node
from tests.situations import a_cluster, submitted

pytestmark = pytest.mark.django_db


def test_topics_that_exist_resolve_to_themselves() -> None:
    workload = submitted(a_cluster())
    for topic in ("cluster:fleet", "decisions", "policies", f"workload:{workload.pk}", "node:fleet/n1"):
        assert resolve_topic(topic) == topic


def test_unique_node_name_needs_no_cluster_name() -> None:
    a_cluster(a_node("n1"))
    a_cluster(a_node("m1"), name="second")
    assert resolve_topic("node:m1") == "node:second/m1"
    assert snapshot("node:m1").data["cluster"] == "second"


def test_shared_node_name_resolves_to_the_first_cluster() -> None:
    a_cluster(a_node("n1"))
    a_cluster(a_node("n1"), name="second")
    assert resolve_topic("node:n1") == "node:fleet/n1"
    assert resolve_topic("node:second/n1") == "node:second/n1"
    node = find_node("n1", "second")
    assert node is not None
    assert node.cluster.name == "second"


def test_ambiguous_node_name_requires_its_cluster() -> None:
    a_cluster(a_node("n1"))
    a_cluster(a_node("m1"), name="second")
    a_cluster(a_node("m1"), name="third")
    with pytest.raises(InputError, match=r"second/m1, third/m1"):
        resolve_topic("node:m1")


@pytest.mark.parametrize("topic", ["cluster:none", "node:none", "workload:w-none", "nodes", "", "decisions:1", "node:"])
def test_unknown_topics_are_rejected(topic: str) -> None:
    a_cluster()
    with pytest.raises(InputError) as refused:
        resolve_topic(topic)
    assert refused.value.code == "TopicUnknown"
