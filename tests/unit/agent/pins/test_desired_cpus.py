"""The desired CPUs of every container, by the policy of its pod's allocation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hetsched.agent.pins.wanted import MachineCpus, PinPlan, PodContainer, RuntimePod, plan
from hetsched.contracts.cpuset import format_cpuset, parse_cpuset
from hetsched.contracts.messages.signatures import VerifiedAllocation
from hetsched.contracts.objects.allocation import ZoneGrant

ONLINE = parse_cpuset("0-15")
ZONES = {0: parse_cpuset("0-7"), 1: parse_cpuset("8-15")}
MACHINE = MachineCpus(ONLINE, zones=ZONES)


def granted(
    policy: str | None, epoch: int = 1, zones: tuple[tuple[str, str], ...] = (), cpus: str = "", **containers: str
) -> VerifiedAllocation:
    named = ",".join(containers.values())
    grants = tuple(ZoneGrant(name, cpus) for name, cpus in zones)
    return VerifiedAllocation("", "n1", epoch, cpus or named, grants, (), policy, containers)


def planned(
    pods: dict[str, VerifiedAllocation | None],
    machine: MachineCpus = MACHINE,
    settled: dict[str, str] | None = None,
    side: bool = True,
) -> PinPlan:
    """Plan for pods in order of their age, each with the containers main and side; IDs are `pod/name`."""
    names = ("main", "side") if side else ("main",)
    members = [PodContainer(f"{uid}/{name}", uid, name) for uid in pods for name in names]
    there = {one: parse_cpuset(cpus) for one, cpus in (settled or {}).items()}
    return plan(machine, [RuntimePod(uid, age, grant) for age, (uid, grant) in enumerate(pods.items())], members, there)


def cpus(found: PinPlan) -> dict[str, str]:
    return {one: format_cpuset(wanted.cpus) for one, wanted in found.containers.items()}


def test_containers_without_grants_share_all_cpus() -> None:
    found = planned({"a": None, "b": granted("none", main="0-3"), "c": granted(None, main="1")}, side=False)
    assert cpus(found) == {"a/main": "0-15", "b/main": "0-15", "c/main": "0-15"}
    assert all(wanted.predicted is None for wanted in found.containers.values())


def test_exclusive_cpus_leave_the_shared_ones() -> None:
    found = planned({"a": granted("exclusive", main="2-3"), "b": None})
    # 16 CPUs less 2 and 3; a's other container has no exclusive CPUs.
    shared = "0-1,4-15"
    assert cpus(found) == {"a/main": "2-3", "a/side": shared, "b/main": shared, "b/side": shared}
    assert [one for one, wanted in found.containers.items() if wanted.own] == ["a/main"]


def test_cpus_of_no_container_stay_with_the_pod() -> None:
    assert format_cpuset(planned({"a": granted("exclusive", cpus="2-5", main="2-3")}).shared) == "0-1,6-15"


def test_immovable_cpus_are_shared_but_not_exclusive() -> None:
    found = planned({"a": granted("immovable", main="2-3"), "b": granted("exclusive", main="3-4"), "c": None})
    assert (cpus(found)["a/main"], cpus(found)["b/main"], cpus(found)["c/main"]) == ("2-3", "0-15", "0-15")
    assert found.containers["b/main"].why == "CPUs 3 belong to pod a"


def test_immovable_containers_keep_their_cpus() -> None:
    pods = {"a": granted("immovable", 1, main="2-3"), "b": granted("exclusive", 9, main="2-3")}
    assert cpus(planned(pods))["b/main"] == "2-3"
    found = planned(pods, settled={"a/main": "2-3"})
    assert (cpus(found)["a/main"], cpus(found)["b/main"]) == ("2-3", "0-15")
    moved = planned({"a": granted("immovable", 9, main="4-5")}, settled={"a/main": "2-3"})
    assert cpus(moved)["a/main"] == "2-3"
    assert moved.containers["a/main"].why == "the CPU policy is immovable, so the container keeps CPUs 2-3"


def test_numa_pods_have_the_shared_cpus_of_their_zones() -> None:
    pods: dict[str, VerifiedAllocation | None] = {"a": granted("numa", zones=(("node-1", "8-11"),), main="8-11")}
    assert cpus(planned(pods))["a/main"] == "8-15"
    pods["b"] = granted("exclusive", main="8-9")
    assert cpus(planned(pods))["a/main"] == "10-15"
    pods["b"] = granted("exclusive", main="8-15")
    found = planned(pods)
    assert cpus(found)["a/main"] == "0-7"
    assert found.containers["a/main"].why == "all CPUs 8-15 are exclusive to other pods or offline"


def test_zones_without_a_number_have_their_granted_cpus() -> None:
    assert cpus(planned({"a": granted("numa", zones=(("left", "4-7"),), main="4-7")}))["a/main"] == "4-7"


def test_conflicting_cpus_belong_to_the_higher_epoch_then_older_pod() -> None:
    pods = {"old": granted("exclusive", 1, main="2-3"), "new": granted("exclusive", 2, main="3-4")}
    found = planned(pods)
    assert (cpus(found)["old/main"], cpus(found)["new/main"]) == ("0-2,5-15", "3-4")
    assert found.containers["old/main"].why == "CPUs 3 belong to pod new"
    same = {"old": granted("exclusive", 2, main="2-3"), "new": granted("exclusive", 2, main="3-4")}
    assert cpus(planned(same))["old/main"] == "2-3"


def test_strictly_reserved_cpus_are_not_shared_either() -> None:
    strict = MachineCpus(ONLINE, withheld=parse_cpuset("0,8"), zones=ZONES)
    assert cpus(planned({"a": None}, strict, side=False)) == {"a/main": "1-7,9-15"}


def test_offline_cpus_belong_to_no_pod() -> None:
    machine = MachineCpus(parse_cpuset("0-2"), zones=ZONES)
    found = planned({"a": granted("exclusive", main="2-3"), "b": granted("exclusive", main="7")}, machine)
    assert (cpus(found)["a/main"], found.containers["a/main"].why) == ("2", "CPUs 3 are offline")
    assert (cpus(found)["b/main"], found.containers["b/main"].why) == ("0-1", "CPUs 7 are offline")


def test_fully_exclusive_machine_has_no_shared_cpus() -> None:
    found = planned({"a": granted("exclusive", main="0-15"), "b": None}, side=False)
    assert cpus(found) == {"a/main": "0-15", "b/main": ""}


@st.composite
def fleets(draw: st.DrawFn) -> dict[str, VerifiedAllocation | None]:
    sets = st.sets(st.integers(0, 19), min_size=1, max_size=6).map(format_cpuset)
    policies = st.sampled_from([None, "none", "exclusive", "immovable", "numa", "static", "odd"])
    return {
        f"p{number}": granted(draw(policies), draw(st.integers(0, 3)), (("node-0", "0-3"),), main=draw(sets))
        for number in range(draw(st.integers(1, 8)))
    }


@given(fleets())
def test_exclusive_cpus_are_disjoint_and_unshared(pods: dict[str, VerifiedAllocation | None]) -> None:
    found = planned(pods)
    own = [(one, wanted) for one, wanted in found.containers.items() if wanted.own]
    for one, wanted in own:
        assert wanted.cpus <= ONLINE
        for other, theirs in found.containers.items():
            assert one == other or not wanted.cpus & theirs.cpus
    assert not found.shared & frozenset().union(*(wanted.cpus for _, wanted in own))
