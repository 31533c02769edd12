"""On random small machines the engine and a brute-force oracle agree on feasibility and on allocations.

`HETSCHED_TEST_MACHINES=20000` draws that many machines (a sample by default); `HETSCHED_TEST_SEED` repeats a run. On
each machine several pods arrive and end, so that most requests find a machine in use.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from hetsched.contracts.cpuset import format_cpuset, parse_cpuset
from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.node_report import NumaReport, NumaZone
from hetsched.contracts.objects.policy import PluginUse
from hetsched.contracts.objects.workload import ContainerDemand
from hetsched.engine.framework.cycle import Scheduler
from tests.builders import PodBuilder, a_card, a_node, a_pod
from tests.unit.engine.brute_force import Held, Machine, Truth, Wish, Zone
from tests.unit.engine.fleet import built, policy_of, scheduler

MACHINES = int(os.environ.get("HETSCHED_TEST_MACHINES", "400"))
SEED = int(os.environ.get("HETSCHED_TEST_SEED", "1"))
PARTS = 8
PODS = 6


def draw_machine(rng: Random) -> Machine:
    named, threads = rng.random() < 0.8, rng.choice([1, 2, 2, 4])
    cards = list(range(4))
    rng.shuffle(cards)
    next_id, zones = rng.randrange(3), []
    for number in range(rng.choice([1, 2, 2, 2])):
        count = rng.randint(1, 8)
        ids = (
            [next_id + step for step in range(count)]
            if rng.random() < 0.5
            else rng.sample(range(next_id, next_id + 12), count)
        )
        next_id = max(ids) + 1 + rng.randrange(2)
        ids.sort()
        stride = max(1, -(-count // threads))
        cores = [ids[first::stride] for first in range(stride)]
        allocatable = rng.choice([1000 * count, 1000 * count, rng.randint(500, 1000 * count)])
        offline = rng.choice([None, None, rng.randint(0, 1000 * count)])
        own = [cards.pop() for _ in range(rng.randint(0, 2))]
        zones.append(Zone(f"node-{number}", ids if named else None, cores, 1000 * count, allocatable, offline, own))
    every = [cpu for zone in zones for cpu in zone.cpus or ()]
    reserved = set(rng.sample(every, min(len(every), rng.choice([0, 0, 1, 2]))))
    for zone in zones:
        if zone.cpus is not None:
            zone.allocatable = min(zone.allocatable, 1000 * len(set(zone.cpus) - reserved))
    policy = rng.choice(["none", "best-effort", "restricted", "single-numa-node"])
    return Machine(
        zones, reserved, rng.random() < 0.3, policy, rng.random() < 0.5, rng.choice([None, None, True, False])
    )


def draw_wish(rng: Random) -> Wish:
    containers = [(rng.randint(1, 4), 0)] * rng.choice([1, 1, 2]) if rng.random() < 0.85 else []
    extra = rng.choice([0, 0, 500])
    cards = rng.choice([0, 0, 0, 1, 1, 2])
    by_resource = cards and rng.random() < 0.7
    if by_resource:
        containers = [(containers[0][0], cards), *containers[1:]] if containers else [(0, cards)]
    return Wish(
        containers,
        sum(1000 * cpus for cpus, _ in containers) + extra,
        rng.choice([None, True, True, False]),
        rng.choice([None, "none", "numa", "exclusive", "exclusive", "immovable"]),
        rng.random() < 0.7,
        rng.choice(["", "", "busy", "idle", "peaks=08-18", "peaks=20-06"]),
        cards,
    )


def node_of(machine: Machine) -> NumaReport:
    zones = []
    for zone in machine.zones:
        groups = ";".join(format_cpuset(core) for core in zone.cores)
        zones.append(
            NumaZone(
                zone.name,
                None if zone.cpus is None else format_cpuset(zone.cpus),
                None if zone.cpus is None else groups,
                {"cpu": zone.capacity},
                {"cpu": zone.allocatable},
                zone.offline,
            )
        )
    cpu_manager = "static" if machine.kubelet_pins else "none"
    scope = "pod" if machine.pod_scope else "container"
    return NumaReport(tuple(zones), cpu_manager, machine.policy, scope, format_cpuset(machine.reserved))


def pod_of(name: str, wish: Wish) -> PodBuilder:
    pod = a_pod(name).cpu(f"{wish.millis}m").containers(*(ContainerDemand(c, 0, g) for c, g in wish.containers))
    if wish.guaranteed:
        pod.guaranteed()
    if wish.aware is not None or wish.policy is not None:
        pod.numa(wish.aware, wish.policy or "none")
    if wish.cards:
        pod.gpu(wish.cards)
    return pod.shaped(load_profile=wish.profile)


def deciding(machine: Machine, order: str, *, local: bool) -> Scheduler:
    node = a_node("n").having(numa=node_of(machine))
    if machine.label is not None:
        node.labelled({"topology.crane.io/topology-awareness": str(machine.label).lower()})
    zone_of = {card: zone.name for zone in machine.zones for card in zone.cards}
    node.having(gpus=tuple(a_card(card, numa_zone=zone_of[card]) for card in machine.cards))
    params = {"order": order, "cards": "require" if local else "prefer"}
    return scheduler([node], policy=policy_of(PluginUse("numa-fit", params=params), "gpu-fit"))


def check_grant(truth: Truth, wish: Wish, order: str, granted: Allocation) -> Held:
    """Compare the allocation with the best possible one, and return the pod's current allocation."""
    treatment, zones = truth.treatment(wish), {zone.name: zone for zone in truth.machine.zones}
    millis = {zone.name: zone.cpu_millis for zone in granted.zones}
    cards = {card.index for card in granted.gpus}
    assert len(cards) == wish.cards
    assert cards <= truth.free_cards()
    ids: set[int] = set()
    unnamed: dict[str, int] = {}
    if treatment == "left":
        assert millis == {}
        for zone in granted.predicted:
            millis[zone.name] = zone.cpu_millis
            unnamed[zone.name] = zone.cpu_millis // 1000
        return Held(millis, ids, unnamed, cards, wish.profile)
    assert sum(millis.values()) == (1000 * wish.whole or wish.millis)
    if treatment == "one":
        near = truth.zones_with_cards(wish)
        (name,) = millis
        # Where the kubelet holds the GPUs to a zone, GPUs and CPUs follow its choice.
        if not any(count for _, count in wish.containers) or truth.machine.policy in ("none", "best-effort"):
            assert name == truth.preferred_zone(wish, near)
            assert name not in near or cards <= set(zones[name].cards)
    else:
        assert len(millis) == min(len(split) for split in truth.splits(wish))
        assert {name: amount // 1000 for name, amount in millis.items()} in list(truth.splits(wish))
    for grant in granted.zones:
        zone = zones[grant.name]
        if zone.cpus is None or not truth.pinned(wish):
            assert grant.cpus is None or wish.policy == "numa"
            unnamed[grant.name] = grant.cpu_millis // 1000 if truth.pinned(wish) else 0
            continue
        got = parse_cpuset(grant.cpus or "")
        assert got <= truth.free_ids(zone)
        assert len(got) == grant.cpu_millis // 1000
        if order == "spread" or len({len(core) for core in zone.cores}) == 1 or wish.profile not in ("", "idle"):
            assert sorted(got) == truth.best_cpus(zone, len(got), order, wish.profile)
        ids |= got
    return Held(millis, ids, unnamed, cards, wish.profile)


@pytest.mark.parametrize("part", range(PARTS))
def test_feasibility_and_grants_equal_brute_force(part: int) -> None:
    for number in range(part, MACHINES, PARTS):
        case = f"machine {number} of seed {SEED}"
        rng = Random(f"{SEED}/{number}")
        machine, order, local = draw_machine(rng), rng.choice(["spread", "pack"]), rng.random() < 0.3
        truth, chosen = Truth(machine, local=local), deciding(machine, order, local=local)
        empty = chosen.state.columns.load.tolist()
        for pod in range(PODS):
            if truth.held and rng.random() < 0.3:
                leaving = rng.choice(sorted(truth.held))
                del truth.held[leaving]
                chosen.state.forget(f"default/{leaving}")
            wish = draw_wish(rng)
            fits = truth.feasible(wish)
            outcome = chosen.schedule(built(pod_of(f"p{pod}", wish)))
            assert (outcome.node is not None) == fits, f"{case}, pod {pod}: {machine} {wish}"
            if fits:
                truth.held[f"p{pod}"] = check_grant(truth, wish, order, outcome.allocation)
            for zone in machine.zones:
                position = chosen.state.zones.nodes[0].names.index(zone.name)
                free = chosen.state.columns.field("zone_cpu_free")[position, 0]
                pins = chosen.state.columns.field("zone_cpus_free")[position, 0]
                assert (free, pins) == (truth.free_millis(zone), truth.pins_left(zone)), f"{case}, pod {pod}"
        for name in truth.held:
            chosen.state.forget(f"default/{name}")
        assert chosen.state.columns.load.tolist() == empty
        assert chosen.state.zones.held == {}
