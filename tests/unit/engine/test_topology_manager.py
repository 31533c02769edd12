"""Predicted admission by the kubelet's topology manager; machines are counts by zone, as in its documentation."""

from __future__ import annotations

import pytest

from hetsched.engine.numa.resource_managers import (
    UNEXPECTED_ADMISSION_ERROR,
    ContainerDemands,
    Counts,
    DeviceZones,
    ZoneResources,
)
from hetsched.engine.numa.topology_manager import (
    TOPOLOGY_AFFINITY_ERROR,
    KubeletVerdict,
    verdict,
)

ALL = ("none", "best-effort", "restricted", "single-numa-node")
STRICT = ("restricted", "single-numa-node")


def says(
    policy: str, cpus: int = 0, cards: int = 0, *, free: Counts = (4, 4), cards_free: Counts = (1, 1),
    total: Counts | None = None, all_cards: Counts | None = None, pod_scope: bool = False,
) -> KubeletVerdict:  # fmt: skip
    machine = ZoneResources(total or (4,) * len(free), free, all_cards or cards_free, cards_free)
    return verdict(policy, pod_scope, machine, (ContainerDemands(cpus, cards),))


def refused(policies: tuple[str, ...], *arguments: int, **machine: Counts) -> list[str]:
    return [policy for policy in policies if says(policy, *arguments, **machine).reason == TOPOLOGY_AFFINITY_ERROR]


def test_request_within_one_zone_is_admitted_by_all_policies() -> None:
    for policy in ALL:
        assert says(policy, 4) == KubeletVerdict("", (4, 0), () if policy == "none" else (0,), (0, 0))


def test_request_fits_an_empty_zone_but_now_only_two() -> None:
    # 3 CPUs, 2 + 2 free of 4 + 4: a set of one zone is the smallest possible, and none has capacity.
    assert refused(ALL, 3, free=(2, 2)) == ["restricted", "single-numa-node"]


def test_request_larger_than_any_zone_fails_single_numa_node() -> None:
    # 6 of 4 + 4: two zones are the smallest set, so restricted admits it; single-numa-node never does.
    assert refused(ALL, 6) == ["single-numa-node"]
    assert says("restricted", 6).cpus == (4, 2)


def test_two_gpus_across_zones_where_one_zone_has_two() -> None:
    # Zone 0 has two GPUs, one of them in use; one is free on each zone.
    assert refused(ALL, 0, 2, cards_free=(1, 1), all_cards=(2, 1)) == ["restricted", "single-numa-node"]


def test_two_gpus_across_zones_where_no_zone_has_two() -> None:
    assert refused(ALL, 0, 2, cards_free=(1, 1)) == ["single-numa-node"]


def test_cpus_over_two_zones_and_a_card_of_one_do_not_agree() -> None:
    # The CPUs need both zones, the GPU one: the sets differ, so no merged hint is preferred.
    assert refused(ALL, 6, 1) == ["restricted", "single-numa-node"]


def test_cards_come_from_the_zones_of_the_hint() -> None:
    # Policy none restricts nothing: two of the three GPUs, zone 0 with its single GPU first, as the emptier one.
    assert says("single-numa-node", 1, 2, cards_free=(1, 2)).cards == (0, 2)
    assert says("none", 0, 2, cards_free=(1, 2)).cards == (1, 1)


def test_cpus_and_card_must_be_free_in_the_same_zone() -> None:
    assert refused(STRICT, 3, 1, free=(4, 2), cards_free=(0, 1), all_cards=(1, 1)) == list(STRICT)
    assert says("single-numa-node", 3, 1, free=(2, 4), cards_free=(1, 1)).aligned == (1,)


def test_gpus_of_an_unknown_zone_give_no_hint() -> None:
    assert refused(STRICT, 3, 2, cards_free=(0, 0)) == []


def test_machine_of_one_zone_admits_fitting_pods() -> None:
    for policy in ALL:
        assert says(policy, 4, 1, free=(4,), cards_free=(1,)).reason == ""


def test_request_above_the_machine_is_rejected_by_all_policies() -> None:
    assert says("none", 9).reason == says("best-effort", 9).reason == UNEXPECTED_ADMISSION_ERROR
    assert refused(STRICT, 9) == list(STRICT)


def test_narrowest_hint_with_the_lowest_zones_is_selected() -> None:
    assert says("restricted", 2, free=(1, 3, 4), cards_free=(0, 0, 0)).aligned == (1,)
    assert says("best-effort", 6, free=(4, 4, 4), cards_free=(0, 0, 0)).aligned == (0, 1)


def test_cpus_are_taken_from_whole_zones_and_then_the_fullest() -> None:
    assert says("none", 4, free=(2, 4)).cpus == (0, 4)  # zone 1 is completely free and fits
    assert says("none", 5, free=(2, 4)).cpus == (1, 4)
    assert says("none", 3, free=(3, 2)).cpus == (1, 2)  # neither is: the one with fewer left is filled up first


def test_best_effort_falls_back_to_the_zones_that_are_left() -> None:
    # 3 CPUs, 2 + 1 + 2 free of 4 each: preferred would be one zone; of the pairs that hold it, 0 and 1 are lowest.
    assert says("best-effort", 3, free=(2, 1, 2), cards_free=(0, 0, 0)).aligned == (0, 1)


def test_best_effort_falls_back_to_a_set_of_zones_with_the_card() -> None:
    # 6 CPUs need two of three zones, the card lies on zone 2. The device manager gives hints of zones with devices only
    # (kubernetes 1.36, `deviceNUMANodes`): {2}. Cut with {0,1}: empty; with {0,2}, {1,2} or {0,1,2}: {2}. So {2} is all
    # there is, and the CPUs are taken there first: 4, then 2 of the next.
    found = says("best-effort", 6, 1, free=(4, 4, 4), cards_free=(0, 0, 1))
    assert (found.aligned, found.cpus, found.cards) == ((2,), (2, 0, 4), (0, 0, 1))


def test_best_effort_takes_as_many_zones_as_the_larger_request_needs() -> None:
    # 6 CPUs need two zones; 2 cards of 1 + 1 + 1 need two as well, but zone 2 has no CPU left for a pair with 0 or 1.
    # CPU hints {0,1} and {0,1,2}; device hints {0,1}, {0,2}, {1,2}, {0,1,2}: {0,1} is preferred by both.
    assert says("best-effort", 6, 2, free=(4, 4, 0), cards_free=(1, 1, 1)).aligned == (0, 1)


@pytest.mark.parametrize(("pod_scope", "reason"), [(False, ""), (True, TOPOLOGY_AFFINITY_ERROR)])
def test_scope_decides_whether_containers_share_a_zone(pod_scope: bool, reason: str) -> None:
    # Two containers of 3 CPUs on two zones of 4: each fits one zone, their sum none.
    machine = ZoneResources((4, 4), (4, 4), (0, 0), (0, 0))
    assert (
        verdict("single-numa-node", pod_scope, machine, (ContainerDemands(3, 0), ContainerDemands(3, 0))).reason
        == reason
    )


def test_containers_use_the_rest_of_earlier_ones() -> None:
    machine = ZoneResources((4, 4), (4, 4), (0, 0), (0, 0))
    found = verdict("single-numa-node", False, machine, (ContainerDemands(3, 0), ContainerDemands(2, 0)))
    assert (found.cpus, found.aligned) == ((3, 2), ())  # restricted to both zones: not at all
    third = verdict(
        "single-numa-node", False, machine, (ContainerDemands(3, 0), ContainerDemands(2, 0), ContainerDemands(3, 0))
    )
    assert third.reason == TOPOLOGY_AFFINITY_ERROR


def test_init_containers_release_their_resources() -> None:
    machine = ZoneResources((4, 4), (4, 3), (0, 0), (0, 0))
    # 4 CPUs of zone 0 are used again by the pod's container, which would otherwise fit nowhere.
    assert verdict(
        "single-numa-node", False, machine, (ContainerDemands(4, 0, init=True), ContainerDemands(4, 0))
    ).cpus == (4, 0)
    # In scope pod the larger of the two counts, not the sum.
    assert verdict(
        "single-numa-node", True, machine, (ContainerDemands(4, 0, init=True), ContainerDemands(3, 0))
    ).cpus == (3, 0)


def test_released_init_resources_are_used_first() -> None:
    # 2 CPUs of zone 0 come back, and with 0 free beside them the 3 that follow fit no set of one zone that has them.
    machine = ZoneResources((4, 4), (2, 4), (0, 0), (0, 0))
    containers = (ContainerDemands(2, 0, init=True), ContainerDemands(3, 0))
    assert verdict("single-numa-node", False, machine, containers).reason == TOPOLOGY_AFFINITY_ERROR


def test_released_resources_are_used_once() -> None:
    # Zone 0 lent 4 CPUs to the init container; the first container uses 3 of them, the second finds 1.
    machine = ZoneResources((4, 4), (4, 0), (0, 0), (0, 0))
    first = (ContainerDemands(4, 0, init=True), ContainerDemands(3, 0))
    assert verdict("none", False, machine, (*first, ContainerDemands(1, 0))).cpus == (4, 0)
    assert verdict("none", False, machine, (*first, ContainerDemands(2, 0))).reason == UNEXPECTED_ADMISSION_ERROR


def test_sidecar_keeps_its_resources() -> None:
    machine = ZoneResources((4, 4), (4, 4), (0, 0), (0, 0))
    found = verdict(
        "single-numa-node",
        True,
        machine,
        (ContainerDemands(1, 0), ContainerDemands(4, 0, init=True), ContainerDemands(2, 0)),
    )
    # at most max(1 + 4, 1 + 2) = 5 at once, more than a zone has
    assert found.reason == TOPOLOGY_AFFINITY_ERROR


def test_more_than_eight_zones_run_without_a_policy() -> None:
    assert says("single-numa-node", 5, free=(4,) * 9, cards_free=(0,) * 9).reason == ""


# -- devices without a zone, and devices of init containers ------------------------------------------------------------


def test_gpus_without_a_zone_complete_a_request() -> None:
    # One GPU in zone 0 and one without a zone: two GPUs are available, and only one of them can be aligned.
    machine = ZoneResources((4, 4), (4, 4), (1, 0), (1, 0), cards_elsewhere=1)
    admissions = {policy: verdict(policy, False, machine, (ContainerDemands(0, 2),)) for policy in ALL}
    assert [admission.reason for admission in admissions.values()] == ["", "", *[TOPOLOGY_AFFINITY_ERROR] * 2]
    assert admissions["none"].cards == admissions["best-effort"].cards == (1, 0)
    assert verdict("none", False, machine, (ContainerDemands(0, 3),)).reason == UNEXPECTED_ADMISSION_ERROR


def nics(count: int, *, init: bool = False) -> ContainerDemands:
    return ContainerDemands(0, 0, init, (("nic", count),))


def test_released_devices_without_a_zone_are_used_again() -> None:
    # The init container uses both NICs, one of them without a zone, and the container uses the same two.
    machine = ZoneResources((4,), (4,), (0,), (0,), (DeviceZones("nic", (1,), (1,), 1),))
    found = verdict("none", False, machine, (nics(2, init=True), nics(2)))
    assert (found.reason, found.devices) == ("", (("nic", (1,)),))


def test_pod_holds_the_devices_of_its_init_containers() -> None:
    # The container uses one of the two NICs again; the device manager keeps both until the pod ends.
    machine = ZoneResources((4,), (4,), (0,), (0,), (DeviceZones("nic", (3,), (3,)),))
    found = verdict("restricted", False, machine, (nics(2, init=True), nics(1)))
    assert found.devices == (("nic", (2,)),)
