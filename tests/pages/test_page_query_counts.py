"""The number of queries of a page does not grow with the number of shown rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from hetsched.inventory.models import Cluster
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, placed

# Session, user, groups and clusters are four of them; a topic's revision is a fifth.
MOST_QUERIES = 14
ADDRESSES = (
    "/", "/nodes/", "/nodes/n0/", "/nodes/n0/isa/", "/nodes/n0/gpu/", "/nodes/n0/numa/", "/nodes/n0/pods/",
    "/nodes/n0/decisions/", "/workloads/", "/decisions/", "/what-if/", "/policies/", "/policies/hetsched/",
)  # fmt: skip


@pytest.fixture
def queries(viewer: Client) -> Callable[[str], int]:
    def count(address: str) -> int:
        with CaptureQueriesContext(connection) as asked:
            assert viewer.get(address).status_code == 200, address
        return len(asked)

    return count


def filled(viewer: Client, nodes: int, pods: int) -> Cluster:
    cluster = a_cluster(*(a_node(f"n{number}").gpus(2) for number in range(nodes)))
    placed(cluster, "n0", *(a_pod(f"p{number}").cpu("10m").memory("1Mi") for number in range(pods)))
    viewer.get("/nodes/n0/")  # the scheduler cache of a cluster is built once, by the first request
    return cluster


def test_query_count_is_independent_of_the_size(viewer: Client, queries: Callable[[str], int]) -> None:
    cluster = filled(viewer, nodes=2, pods=1)
    small = {address: queries(address) for address in ADDRESSES}
    cluster.delete()
    filled(viewer, nodes=20, pods=15)
    large = {address: queries(address) for address in ADDRESSES}
    assert large == small
    assert max(small.values()) <= MOST_QUERIES, small
