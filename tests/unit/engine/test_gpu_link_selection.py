"""Several GPUs for one pod: the best-linked free set, compared with brute force."""

from __future__ import annotations

from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsched.contracts.objects.node_report import CardLink, GpuCard
from hetsched.contracts.objects.policy import PluginUse
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.compiled.batch import BatchScheduler
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.gpu.links import MOST_SETS, Table, best_linked, link_table
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import policy_of

# A POWER8 machine (hwloc dump): four GPUs, NVLink of 40 GB/s inside the pairs 0-1 and 2-3, nothing between them.
POWER8 = (CardLink(1, "nvlink", 40.0),), (), (CardLink(3, "nvlink", 40.0),), ()


def cards(*links: tuple[CardLink, ...], zones: tuple[str | None, ...] = ()) -> tuple[GpuCard, ...]:
    where = zones or (None,) * len(links)
    return tuple(
        GpuCard(index, links=own, numa_zone=zone) for index, (own, zone) in enumerate(zip(links, where, strict=True))
    )


def granted(found: tuple[GpuCard, ...], *counts: int, links: str = "best") -> list[list[int]]:
    """Return the GPU indices of pods that request these numbers of GPUs, one after the other."""
    node = a_node("n").having(gpus=found).build()
    policy = policy_of(PluginUse("gpu-fit", params={"links": links}))
    scheduler = Scheduler(ClusterState([node]), policy)
    pods = [a_pod(f"p{number}").gpu(count).build() for number, count in enumerate(counts)]
    return [[card.index for card in scheduler.schedule(pod).allocation.gpus] for pod in pods]


def test_linked_pair_is_assigned_together() -> None:
    # GPU 0 is missing, so GPU 1 has no linked peer: two GPUs are 2 and 3.
    assert granted(cards(*POWER8), 1, 2) == [[0], [2, 3]]
    assert granted(cards(*POWER8), 1, 2, links="ignore") == [[0], [1, 2]]


def test_node_without_links_grants_the_lowest_indices() -> None:
    assert granted(cards((), (), (), ()), 1, 2) == [[0], [1, 2]]


def test_equal_links_give_the_lowest() -> None:
    everyone = [tuple(CardLink(other, "nvlink", 300.0) for other in range(4) if other != number) for number in range(4)]
    assert granted(cards(*everyone), 3) == [[0, 1, 2]]


def test_link_kinds_rank_without_a_bandwidth() -> None:
    links = (CardLink(1, "system"), CardLink(2, "zone"), CardLink(3, "switch"), CardLink(4, "nvlink"))
    table = link_table(cards(links, (), (), (), ()))
    assert table is not None
    assert table[0] == (0, 10_000, 20_000, 24_000, 25_000)


def test_link_is_declared_at_either_end_and_zones_imply_the_rest() -> None:
    table = link_table(cards((), (CardLink(0, "nvlink", 50.0),), (), zones=("a", "a", "b")))
    # 0-1 by card 1; 0-2 and 1-2 are in different zones.
    assert table == ((0, 50_000, 10_000), (50_000, 0, 10_000), (10_000, 10_000, 0))


def test_slowest_link_is_compared_before_the_sum() -> None:
    # 0 is linked to 1 and 2 by 100 GB/s, 1-2 only by 8: 208 in all, but a ring runs at 8. 3-4-5 have 60 each.
    star = (CardLink(1, "nvlink", 100.0), CardLink(2, "nvlink", 100.0))
    ring = (CardLink(4, "nvlink", 60.0), CardLink(5, "nvlink", 60.0))
    found = cards(star, (CardLink(2, "system", 8.0),), (), ring, (CardLink(5, "nvlink", 60.0),), ())
    assert granted(found, 3) == [[3, 4, 5]]


def test_cards_near_the_zone_come_before_better_linked_ones() -> None:
    table = link_table(cards(*POWER8))
    assert table is not None
    assert best_linked(table, (0, 1, 2, 3), frozenset({1, 2}), 2) == (1, 2)
    # Only 2 is near: its linked partner is selected too.
    assert best_linked(table, (0, 1, 2, 3), frozenset({2}), 2) == (2, 3)


tables = st.integers(2, 8).flatmap(
    lambda size: st.lists(
        st.sampled_from([8_000, 16_000, 24_000, 50_000]), min_size=size * size, max_size=size * size
    ).map(
        lambda flat: tuple(
            tuple(0 if i == j else flat[min(i, j) * size + max(i, j)] for j in range(size)) for i in range(size)
        )
    )
)


@settings(max_examples=300)
@given(table=tables, data=st.data())
def test_selected_gpu_set_is_optimal(table: Table, data: st.DataObject) -> None:
    free = sorted(data.draw(st.sets(st.integers(0, len(table) - 1), min_size=1)))
    near = frozenset(data.draw(st.sets(st.sampled_from(free))))
    count = data.draw(st.integers(1, len(free)))

    def rank(some: tuple[int, ...]) -> tuple[int, int, int, tuple[int, ...]]:
        pairs = [table[one][other] for one, other in combinations(some, 2)]
        return -len(near & set(some)), -min(pairs, default=0), -sum(pairs), some

    assert best_linked(table, tuple(free), near, count) == min(combinations(free, count), key=rank)


def test_gpu_sets_of_large_machines_are_extended_greedily() -> None:
    # 20 GPUs in four groups of five; 8 of 20 are 125,970 sets: more than are tried. A group is taken whole.
    size = 20
    table = tuple(tuple(0 if i == j else 50 if i % 4 == j % 4 else 10 for j in range(size)) for i in range(size))
    assert MOST_SETS < 125_970
    found = best_linked(table, tuple(range(size)), frozenset(), 8)
    assert len(set(found)) == 8
    assert {0, 4, 8, 12, 16} <= set(found)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_batch_grants_the_same_gpus(count: int) -> None:
    node = a_node("n").cpu(64).having(gpus=cards(*POWER8)).build()
    pods = [a_pod(f"p{number}").gpu(count).build() for number in range(3)]
    policy = policy_of("resource-fit", "gpu-fit", "least-allocated")
    one_by_one, together = Scheduler(ClusterState([node]), policy), Scheduler(ClusterState([node]), policy)
    expected = [one_by_one.schedule(pod).allocation for pod in pods]
    assert [
        outcome.allocation for outcome in BatchScheduler(together, expected=10**9, shortest=1).schedule(pods)
    ] == expected
    assert msgspec.to_builtins(expected[0])["gpus"]


def test_fork_and_new_report_keep_links() -> None:
    node = a_node("n").having(gpus=cards(*POWER8))
    state = ClusterState([a_node("n").gpus(4).build()])
    assert state.links == {}
    state.apply_report(node.build())
    assert state.fork().links == state.links != {}
