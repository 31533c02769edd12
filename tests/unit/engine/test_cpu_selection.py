"""Selection of CPUs of a zone, from lists of cores (threads of each) and free CPUs."""

from __future__ import annotations

import pytest

from hetsched.engine.numa.cpu_selection import ALWAYS, Core, Rank, busy_hours, contention, cores_of, pick

# Siblings i and i + 4, as most two-thread machines number them.
FOUR_CORES = cores_of(range(8), "0,4;1,5;2,6;3,7")


def chosen(count: int, order: str, free: set[int] | None = None, cores: tuple[Core, ...] = FOUR_CORES) -> list[int]:
    remaining = {cpu for core in cores for cpu in core} if free is None else free

    def held(core: Core) -> Rank:
        return 0, len(set(core) - remaining)

    return pick(count, cores, remaining, order, held)


def test_spread_uses_one_thread_per_core_first() -> None:
    # 3 of 4 cores with siblings i, i + 4: one thread each
    assert chosen(3, "spread") == [0, 1, 2]


def test_spread_uses_second_threads_last() -> None:
    assert chosen(6, "spread") == [0, 1, 2, 3, 4, 5]


def test_pack_uses_whole_cores_first() -> None:
    # the kubelet's order for 3: core {0, 4} and one thread of the next
    assert chosen(3, "pack") == [0, 4, 1]


def test_pack_fills_cores_that_are_cut_already() -> None:
    # core {0, 4} has only 4 left: a single CPU goes there and leaves the other cores whole
    assert chosen(1, "pack", {4, 1, 5, 2, 6}) == [4]
    assert chosen(3, "pack", {4, 1, 5, 2, 6}) == [1, 5, 4]


def test_spread_prefers_unused_cores() -> None:
    assert chosen(2, "spread", {4, 1, 5, 2, 6}) == [1, 2]
    assert chosen(3, "spread", {4, 1, 5, 2, 6}) == [1, 2, 4]


def test_ids_may_be_sparse_and_cores_wide() -> None:
    power = cores_of([0, 1, 2, 3, 16, 17, 18, 19], "0-3;16-19")
    assert chosen(3, "spread", cores=power) == [0, 16, 1]
    assert chosen(5, "pack", cores=power) == [0, 1, 2, 3, 16]


def test_siblings_that_are_not_in_the_zone_are_left_out() -> None:
    # CPU 5 is offline or elsewhere, CPU 9 is on no listed core.
    assert cores_of([0, 1, 4, 9], "0,4;1,5") == ((0, 4), (1,), (9,))
    assert cores_of([2, 1], None) == ((1,), (2,))


@pytest.mark.parametrize(
    ("profile", "hours"),
    [
        ("busy", range(24)),
        ("idle", ()),
        ("peaks=08-12", (8, 9, 10, 11)),
        ("peaks=22-02", (22, 23, 0, 1)),
        ("peaks=09-09", range(24)),
        ("", None),
    ],
)
def test_profiles_are_hours_of_the_day(profile: str, hours: range | tuple[int, ...] | None) -> None:
    assert busy_hours(profile) == (None if hours is None else frozenset(hours))


def test_busy_pod_prefers_an_idle_neighbour() -> None:
    free, neighbours = contention(ALWAYS, []), [busy_hours(text) for text in ("idle", "", "peaks=08-12", "busy")]
    ranks = [free, *(contention(ALWAYS, [hours]) for hours in neighbours)]
    # free 0; idle 1; unknown 2; busy together for 4 hours 2 + 4; always 2 + 24
    assert [rank[0] for rank in ranks] == [0, 1, 2, 6, 26]


def test_opposite_peaks_do_not_meet() -> None:
    day, night = busy_hours("peaks=08-18"), busy_hours("peaks=20-06")
    assert contention(day, [night])[0] == contention(day, [busy_hours("idle")])[0] == 1
    assert contention(day, [night, day])[0] == contention(day, [day, night])[0] == 2 + 10  # the worst sibling counts


def test_idle_or_unknown_pod_counts_neighbours_only() -> None:
    for own in (busy_hours("idle"), busy_hours("")):
        assert contention(own, [ALWAYS]) == contention(own, [busy_hours("idle")]) == (0, 1)
