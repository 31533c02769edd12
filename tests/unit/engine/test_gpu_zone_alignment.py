"""GPUs near a pod's zone, and zones near its GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from hetsched.contracts.objects.allocation import CardGrant
from hetsched.contracts.objects.policy import PluginUse
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.cycle import Scheduler
from tests.builders import NodeBuilder, PodBuilder, a_card, a_node, a_pod
from tests.unit.engine.fleet import policy_of, scheduler

GPU = "nvidia.com/gpu"


def machine(*zone_of_card: str | None) -> NodeBuilder:
    """Return a machine: node-0 has 4 CPUs, node-1 has 6; GPUs are in these zones."""
    node = a_node("n").cpu(10).zone("node-0", "0-3", cpu="4").zone("node-1", "4-9", cpu="6")
    return node.having(gpus=tuple(a_card(index, numa_zone=zone) for index, zone in enumerate(zone_of_card)))


def wanting(cpus: int, cards: int, **gpu: Any) -> PodBuilder:
    return a_pod("new").cpu(cpus).guaranteed().numa(True, "exclusive").gpu(cards, **gpu)


def deciding(node: NodeBuilder, *running: PodBuilder, **params: Any) -> Scheduler:
    return scheduler([node], running, policy=policy_of(PluginUse("numa-fit", params=params), "gpu-fit"))


def granted(chosen: Scheduler, pod: PodBuilder) -> tuple[list[str], list[int]] | None:
    outcome = chosen.schedule(pod.build())
    if outcome.node is None:
        return None
    return [zone.name for zone in outcome.allocation.zones], [card.index for card in outcome.allocation.gpus]


def test_zone_with_the_gpu_precedes_a_larger_one() -> None:
    assert granted(deciding(machine("node-0")), wanting(2, 1)) == (["node-0"], [0])


def test_zone_with_more_free_cpus_provides_its_gpus() -> None:
    node = machine("node-0", "node-1", "node-0", "node-1")
    assert granted(deciding(node), wanting(2, 2)) == (["node-1"], [1, 3])


def test_remote_gpus_are_allowed_if_near_ones_are_only_preferred() -> None:
    assert granted(deciding(machine("node-0")), wanting(5, 1)) == (["node-1"], [0])
    assert granted(deciding(machine("node-0"), cards="require"), wanting(5, 1)) is None


def test_near_gpus_are_used_first_if_too_few() -> None:
    # node-1 has the capacity and one of the two GPUs
    node = machine("node-0", "node-0", "node-1")
    assert granted(deciding(node), wanting(5, 2)) == (["node-1"], [0, 2])


def test_gpu_of_unknown_zone_is_near_to_all_zones() -> None:
    assert granted(deciding(machine(None), cards="require"), wanting(5, 1)) == (["node-1"], [0])


def test_zone_selection_uses_only_suitable_gpus() -> None:
    cards = (a_card(0, numa_zone="node-0"), a_card(1, "Tesla-T4", 15360, numa_zone="node-1"))
    node = machine().having(gpus=cards)
    assert granted(deciding(node), wanting(2, 1, model="A100")) == (["node-0"], [0])
    assert granted(deciding(node), wanting(2, 1, model="T4")) == (["node-1"], [1])
    busy = a_pod("other").cpu(1).gpu(1).running_on("n", CardGrant(0, 1000, 40960))
    assert granted(deciding(machine("node-0", "node-1"), busy), wanting(2, 1)) == (["node-1"], [1])


def test_near_shared_gpu_precedes_a_fuller_remote_one() -> None:
    busy = a_pod("other").cpu(1).gpu(1, milli=500).running_on("n", CardGrant(0, 500, 20480))
    chosen = deciding(machine("node-0", "node-1"), busy)
    assert granted(chosen, wanting(5, 1, milli=300)) == (["node-1"], [1])
    # without a zone the fuller GPU is filled up
    assert granted(chosen, a_pod("plain").cpu(1).gpu(1, milli=300)) == ([], [0])


def test_rejection_names_the_missing_gpus() -> None:
    (reason,) = diagnose(deciding(machine("node-0"), cards="require"), wanting(5, 1).build()).reasons
    assert (reason.code, reason.message) == (
        "ZoneCardsInsufficient",
        "no NUMA zone with 5 free CPUs has the requested GPUs",
    )


# -- where the kubelet aligns GPUs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
def test_gpus_and_cpus_follow_the_kubelets_zone(policy: str) -> None:
    # Both zones have a free GPU. The kubelet, which ignores our CPUs, takes the lower one.
    node = machine("node-0", "node-1").offering(GPU, 2).kubelet("none", policy)
    assert granted(deciding(node), wanting(2, 1).requesting(GPU, 1)) == (["node-0"], [0])


def test_gpus_outside_the_kubelets_hint_exclude_the_node() -> None:
    # Zone 0 has two GPUs, one is in use: the smallest set of zones for two GPUs is one, and none has two free.
    node = machine("node-0", "node-0", "node-1").offering(GPU, 3).kubelet("none", "restricted")
    busy = a_pod("other").cpu(1).gpu(1).running_on("n", CardGrant(0, 1000, 40960))
    plain = a_pod("plain").cpu(1).gpu(2).requesting(GPU, 2)
    assert granted(deciding(node, busy), plain) is None
    assert granted(deciding(node), plain) == ([], [0, 1])
    # GPUs requested only by annotation are unknown to the kubelet.
    assert granted(deciding(node, busy), a_pod("ours").cpu(1).gpu(2)) == ([], [1, 2])


def test_predicted_zone_ignores_gpus_of_other_vendors() -> None:
    # Of the two GPUs of zone 0 one is requested; counting both, one zone would have to hold two.
    cards = (a_card(0, numa_zone="node-0"), a_card(1, "MI250", numa_zone="node-0"), a_card(2, numa_zone="node-1"))
    node = machine().having(gpus=cards).offering(GPU, 2).kubelet("none", "restricted")
    assert granted(deciding(node), a_pod("two").cpu(1).gpu(2, vendor="nvidia").requesting(GPU, 2)) == ([], [0, 2])


def test_pinning_kubelet_aligns_cpus_and_gpus_together() -> None:
    node = machine("node-0", "node-1").offering(GPU, 2).kubelet("static", "single-numa-node")
    chosen = deciding(node)
    both = a_pod("new").cpu(5).guaranteed().gpu(1).requesting(GPU, 1)
    outcome = chosen.schedule(both.build())
    assert [card.index for card in outcome.allocation.gpus] == [1]
    assert [(zone.name, zone.cpu_millis) for zone in outcome.allocation.predicted] == [("node-1", 5000)]
    assert outcome.allocation.zones == ()
    # 4 CPUs are left on node-0 and 1 on node-1, where no GPU is free: 2 CPUs and a GPU fit node-0.
    assert granted(chosen, a_pod("b").cpu(2).guaranteed().gpu(1).requesting(GPU, 1)) == ([], [0])
    assert granted(chosen, a_pod("c").cpu(3).guaranteed()) is None  # 2 and 1 are left
