"""New images of a live node are stored and scored, and void no decision."""

from __future__ import annotations

import pytest

from hetsched.contracts.objects.node_images import pack_images
from hetsched.contracts.objects.observed import Changes
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection, Node
from hetsched.placement.actions import apply_changes
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.scheduler_cache import cache_of
from tests.builders import NodeBuilder, a_node
from tests.builtins import builtin_policies
from tests.situations import ALICE

pytestmark = pytest.mark.django_db


def decisive_revision(cluster: Cluster, node: NodeBuilder) -> int:
    """Apply a node, and return the revision from which on decisions count; cached and loaded states have to agree."""
    apply_changes(cluster.pk, Changes(nodes=[node.build()]), epoch=1)
    with cache_of(cluster.pk).locked_snapshot() as loaded:
        assert loaded.state.digest() == load_state(cluster.pk).state.digest()
    revision: int = Cluster.objects.get(pk=cluster.pk).decisive_revision
    return revision


def test_new_image_is_stored_and_voids_no_decision() -> None:
    builtin_policies()
    cluster = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=ALICE)
    Connection.objects.create(cluster=cluster, follower_epoch=1)
    images = pack_images({"web:1": 900 << 20})
    before = decisive_revision(cluster, a_node("n1"))
    assert decisive_revision(cluster, a_node("n1").having(image_sizes=images)) == before
    assert Node.objects.get().report.image_sizes == images
    assert decisive_revision(cluster, a_node("n1").having(image_sizes=images).cordoned()) > before
