"""The order of cpuset writes: at no time does a pod run on the exclusive CPUs of another one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsched.agent.pins.order import Target, next_write

FOUR = 0b1111


def writes(
    current: dict[str, int], targets: dict[str, Target], shared: int, stuck: frozenset[str] = frozenset()
) -> Iterator[tuple[str, int, dict[str, int]]]:
    """Execute all writes, and yield each with the state before it."""
    failed, aside = set[str](), set[str]()
    for _ in range(4 * len(targets) + 4):
        write = next_write(current, targets, shared, failed, aside)
        if write is None:
            return
        before, (one, cpus) = dict(current), write
        if one in stuck:
            failed.add(one)
            continue
        if cpus != targets[one].cpus:
            aside.add(one)
        current[one] = cpus
        yield one, cpus, before
    raise AssertionError("the writes do not end")


def ordered_writes(current: dict[str, int], targets: dict[str, Target], shared: int) -> list[tuple[str, int]]:
    return [(one, cpus) for one, cpus, _ in writes(current, targets, shared)]


def test_others_leave_before_exclusive_cpus_are_assigned() -> None:
    # No container is pinned on CPUs 0-3; a gets 0-1 exclusively, so b and c keep 2-3.
    current = dict.fromkeys("abc", FOUR)
    targets = {"a": Target(0b0011, "a", True), "b": Target(0b1100, "b"), "c": Target(0b1100, "c")}
    assert ordered_writes(current, targets, 0b1100) == [("b", 0b1100), ("c", 0b1100), ("a", 0b0011)]


def test_freed_cpus_are_assigned_after_the_exclusive_container_moved() -> None:
    # a moves from 0-1 to its exclusive CPU 2: b, on 2-3, leaves 2, then a moves, then b gets 0-1 too.
    current = {"a": 0b0011, "b": 0b1100}
    targets = {"a": Target(0b0100, "a", True), "b": Target(0b1011, "b")}
    assert ordered_writes(current, targets, 0b1011) == [("b", 0b1000), ("a", 0b0100), ("b", 0b1011)]


def test_swapped_containers_use_shared_cpus_in_between() -> None:
    current = {"a": 0b0001, "b": 0b0010, "c": 0b1100}
    targets = {"a": Target(0b0010, "a", True), "b": Target(0b0001, "b", True), "c": Target(0b1100, "c")}
    assert ordered_writes(current, targets, 0b1100) == [("a", 0b1100), ("b", 0b0001), ("a", 0b0010)]


def test_swap_without_shared_cpus_never_overlaps() -> None:
    current = {"a": 0b01, "b": 0b10}
    targets = {"a": Target(0b10, "a", True), "b": Target(0b01, "b", True)}
    assert ordered_writes(current, targets, 0) == []


def test_unchangeable_container_delays_no_other() -> None:
    current = {"a": FOUR, "b": FOUR}
    targets = {"a": Target(0b0011, "a", True), "b": Target(0b1100, "b")}
    assert [one for one, *_ in writes(current, targets, 0b1100, frozenset("b"))] == ["a"]


def test_cpus_of_a_stuck_exclusive_container_are_not_assigned() -> None:
    current = {"a": 0b0001, "b": 0b0010}
    targets = {"a": Target(0b0010, "a", True), "b": Target(0b0100, "b", True)}
    assert not any(cpus & 0b0010 for _, cpus, _ in writes(current, targets, 0b1001, frozenset("b")))


def test_containers_of_one_pod_may_overlap() -> None:
    current = {"main": FOUR, "side": 0b0011}
    targets = {"main": Target(0b0011, "p", True), "side": Target(0b0001, "p", True)}
    assert ordered_writes(current, targets, 0b1100) == [("main", 0b0011), ("side", 0b0001)]


CPUS = 64


@st.composite
def scenes(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, Target], int]:
    """Draw containers anywhere on 64 CPUs, their targets, and the shared CPUs: at least CPU 0."""
    free = list(range(1, CPUS))
    targets: dict[str, Target] = {}
    for number in range(draw(st.integers(0, 6))):
        taken = [free.pop(draw(st.integers(0, len(free) - 1))) for _ in range(draw(st.integers(1, 8)))]
        targets[f"own-{number}"] = Target(sum(1 << cpu for cpu in taken), f"pod-{number}", True)
    shared = 1 | sum(1 << cpu for cpu in free)
    for number in range(draw(st.integers(0, 6))):
        part = shared & draw(st.integers(1, 2**CPUS - 1)) or shared
        targets[f"shares-{number}"] = Target(draw(st.sampled_from([shared, part])), f"other-{number}")
    if not targets:
        return {}, {}, shared
    of_a_target = st.sampled_from([target.cpus for target in targets.values()])
    anywhere = st.integers(1, 2**CPUS - 1)
    current = {target: draw(st.one_of(st.just(2**CPUS - 1), anywhere, of_a_target)) for target in targets}
    return current, targets, shared


@settings(max_examples=400)
@given(scenes())
def test_all_targets_are_reached_without_new_overlaps(scene: tuple[dict[str, int], dict[str, Target], int]) -> None:
    current, targets, shared = scene
    for one, cpus, before in writes(current, targets, shared):
        new = cpus & ~before[one]
        for other, target in targets.items():
            if target.pod == targets[one].pod:
                continue
            if target.own:
                assert not new & target.cpus, "it was moved to another pod's exclusive CPUs"
            if targets[one].own and cpus == targets[one].cpus:
                assert not new & before[other], "it got exclusive CPUs while another container was on them"
    assert {one: cpus for one, cpus in current.items() if cpus != targets[one].cpus} == {}


@given(scenes(), st.data())
def test_unchangeable_container_costs_no_other_its_cpus(
    scene: tuple[dict[str, int], dict[str, Target], int], data: st.DataObject
) -> None:
    current, targets, shared = scene
    stuck = frozenset(data.draw(st.sets(st.sampled_from(sorted(targets))))) if targets else frozenset()
    for one, cpus, before in writes(current, targets, shared, stuck):
        for target in targets.values():
            if target.own and target.pod != targets[one].pod:
                assert not cpus & ~before[one] & target.cpus


@pytest.mark.parametrize("count", [1, 250])
def test_current_cpuset_is_left_unchanged(count: int) -> None:
    targets = {f"c{number}": Target(1 << number, f"p{number}", number % 2 == 0) for number in range(count)}
    assert next_write({one: target.cpus for one, target in targets.items()}, targets, 0) is None
