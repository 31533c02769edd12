"""numa-fit on nodes where the offline capacity of a NUMA zone cannot be read."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.objects.node_report import NodeReport, NumaReport, NumaZone, zone_problem
from hetsched.contracts.objects.policy import PluginUse
from hetsched.engine.explain.diagnosis import Diagnosis, diagnose
from tests.builders import PodBuilder, a_node, a_pod
from tests.unit.engine.fleet import ask, cluster, policy_of, scheduler

GIB = 2**30
COUNTS_MEMORY = PluginUse("numa-fit", params={"memory": True})


class Zone(NamedTuple):
    cpus: int = 8
    memory: int | None = 16
    state: str = "readable"


def node(*zones: Zone) -> NodeReport:
    """Return a node of zones that are readable, lent (offline capacity 0) or unreadable."""
    listed, problems = [], []
    for number, zone in enumerate(zones):
        name = f"node-{number}"
        amounts = {"cpu": zone.cpus * 1000} | ({} if zone.memory is None else {"memory": zone.memory * GIB})
        listed.append(
            NumaZone(name, allocatable=amounts, offline_capacity_millis=None if zone.state == "readable" else 0)
        )
        if zone.state == "unreadable":
            problems.append(zone_problem(name, "it is no quantity"))
    return a_node("n").cpu(64).having(numa=NumaReport(tuple(listed)), problems=tuple(problems)).build()


def diagnosis(*zones: Zone, aware: bool = True, running: int = 0) -> Diagnosis:
    """Return the diagnosis of a pod of 4 CPUs and 8 GiB; a running pod takes CPUs of the first zone."""
    state = cluster([node(*zones)])
    chosen = scheduler(state.reports, policy=policy_of(COUNTS_MEMORY))
    if running:
        pod = a_pod("r").cpu(running).guaranteed().numa(aware=True, cpu_policy="exclusive").build()
        assert chosen.schedule(pod).node == "n"
    return diagnose(chosen, wish(4, 8, aware=aware).build())


def wish(cpus: int, memory: int, *, aware: bool) -> PodBuilder:
    return a_pod("p").cpu(cpus).memory(f"{memory}Gi").guaranteed().numa(aware=aware, cpu_policy="exclusive")


def codes(found: Diagnosis) -> list[str]:
    return [reason.code for reason in found.reasons]


def test_unreadable_zone_is_unknown_next_to_zone_short_of_memory() -> None:
    found = diagnosis(Zone(memory=1), Zone(state="unreadable"))
    assert (codes(found), found.verdict) == (["ZoneCapacityUnreadable"], Verdict.NOT_NOW)


def test_unreadable_zone_does_not_exclude_preemption() -> None:
    found = diagnosis(Zone(), Zone(state="unreadable"), running=6)
    assert (codes(found), found.verdict, found.resolvable) == (["ZoneCapacityUnreadable"], Verdict.NOT_NOW, (0,))


def test_unreadable_zone_that_is_too_small_is_definite() -> None:
    found = diagnosis(Zone(memory=1), Zone(memory=1, state="unreadable"))
    assert (codes(found), found.verdict) == (["ZoneMemoryInsufficient"], Verdict.NEVER_FITS)
    found = diagnosis(Zone(state="lent"), Zone(cpus=2, state="unreadable"))
    assert (codes(found), found.verdict) == (["ZoneCapacityLent"], Verdict.NOT_NOW)


def test_lent_zone_stays_lent_next_to_unreadable_zone() -> None:
    columns = cluster([node(Zone(state="lent"), Zone(state="unreadable"))]).columns
    assert columns.field("zone_unreadable")[:, 0].tolist() == [0, 1]


@pytest.mark.parametrize("memory", [4, 3])
def test_crossing_pod_counts_memory_of_unreadable_zone(memory: int) -> None:
    # 8 GiB are requested, and the memory of a zone does not depend on its offline capacity.
    found = diagnosis(Zone(2, memory), Zone(2, 4, "unreadable"), aware=False)
    assert codes(found) == ["ZoneCapacityUnreadable" if memory == 4 else "ZoneMemoryInsufficient"]


ZONES = st.builds(
    Zone,
    st.integers(1, 4),
    st.none() | st.integers(1, 4),
    st.sampled_from(["readable", "lent", "unreadable"]),
)


@given(st.lists(ZONES, min_size=1, max_size=3), st.integers(1, 6), st.integers(1, 8), st.booleans())
def test_refusal_is_unknown_iff_unknown_values_could_admit_the_pod(
    zones: list[Zone], cpus: int, memory: int, aware: bool
) -> None:
    def fits(*, best: bool) -> bool:
        """Return whether the pod fits with the worst or best value of each unknown."""
        room = []
        for zone in zones:
            usable = zone.state == "readable" or (best and zone.state == "unreadable")
            unknown = 99 if best else 0
            room.append((zone.cpus if usable else 0, unknown if zone.memory is None else zone.memory))
        if aware:
            return any(free >= cpus and remaining >= memory for free, remaining in room)
        return sum(free for free, _ in room) >= cpus and sum(remaining for _, remaining in room) >= memory

    found = ask("numa-fit", wish(cpus, memory, aware=aware), [node(*zones)], params={"memory": True})
    assert bool(found.feasible) is fits(best=False)
    if not found.feasible:
        (refusal,) = found.reasons["n"]
        assert refusal.unknown is fits(best=True)
