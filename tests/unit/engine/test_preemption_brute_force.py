"""The `preemption` plugin is compared with a brute-force search on every node of random clusters."""

from __future__ import annotations

import random
from itertools import combinations

import msgspec
import pytest

from hetsched.contracts.objects.cluster import DisruptionBudget
from hetsched.contracts.objects.workload import GangMember, PodSpec
from hetsched.engine.cluster.placed_pod import PlacedPod
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.preemption.victims import PreemptiblePods
from tests.builders import a_node, a_pod, matching
from tests.unit.engine.fleet import policy_of

FILTERS = ("node-ready", "taints", "resource-fit", "numa-fit", "gpu-fit", "host-ports", "pod-affinity")
ASKING = policy_of(*FILTERS, "preemption")
PLAIN = policy_of(*FILTERS)
OFFSET = 2**31
Cost = tuple[int, int, int, int, int, int]


def a_cluster(generator: random.Random) -> ClusterState:
    nodes = []
    for number in range(generator.randint(1, 4)):
        node = a_node(f"n{number}").cpu(generator.randint(2, 6)).memory(f"{generator.randint(4, 8)}Gi")
        node.labelled({"topology.kubernetes.io/zone": generator.choice("ab")})
        if generator.random() < 0.4:
            node.gpus(generator.randint(1, 3))
        if generator.random() < 0.3:
            node.cpu("8").zone("node-0", "0-3", memory="4Gi").zone("node-1", "4-7", memory="4Gi")
        if generator.random() < 0.1:
            node.tainted("off")
        nodes.append(node.build())
    running = [a_running_pod(generator, number, nodes[number % len(nodes)].name) for number in range(14)]
    budgets = [DisruptionBudget("default", "web", matching(app="web"), generator.randint(0, 4))]
    state = ClusterState(nodes, (), budgets=budgets if generator.random() < 0.5 else ())
    placing = Scheduler(state, PLAIN)
    for pod in running:  # every pod that fits
        placing.schedule(pod)
    return state


def a_running_pod(generator: random.Random, number: int, node: str) -> PodSpec:
    pod = a_pod(f"r{number:02d}").cpu(f"{generator.choice([500, 1000, 2000])}m").priority(generator.randint(0, 3))
    pod.memory(f"{generator.choice([512, 1024, 2048])}Mi").labelled(app=generator.choice(["web", "db"]))
    pod.created_at(generator.choice(["", f"2026-11-20T10:{generator.randint(10, 59)}:00Z"]))
    pod.having(preemptible=generator.random() < 0.95)
    if generator.random() < 0.2:
        pod.gpu(1, milli=generator.choice([500, 1000]))
    if generator.random() < 0.2:
        pod.cpu(generator.choice("123")).guaranteed().numa(True, generator.choice(["exclusive", "none"]))
    if generator.random() < 0.1:
        pod.host_port(80)
    if generator.random() < 0.1:
        pod.away_from("topology.kubernetes.io/zone", app="new")
    if generator.random() < 0.1:
        pod.gang("team", 2)
    elif generator.random() < 0.1:
        pod.having(gang=GangMember("single", 2, disruption_mode="Single"))
    return pod.build()


def a_new_pod(generator: random.Random) -> PodSpec:
    pod = a_pod("new").cpu(f"{generator.choice([1000, 2000, 3000])}m").memory("2Gi").labelled(app="new")
    pod.priority(generator.randint(0, 4))
    if generator.random() < 0.3:
        pod.gpu(generator.randint(1, 2))
    if generator.random() < 0.3:
        pod.cpu(generator.choice("234")).guaranteed().numa(True, "exclusive")
    if generator.random() < 0.2:
        pod.host_port(80)
    return pod.build()


def fits_without(state: ClusterState, pod: PodSpec, row: int, removed: set[str]) -> bool:
    """Return whether a plain scheduler, on a copy without these pods, could place the pod on that node."""
    fork = state.fork()
    for key in removed:
        fork.forget(key)
    _, total = Scheduler(fork, PLAIN).evaluator.evaluate(fork.compile(pod))
    return bool(total[row] > float("-inf"))


def evicted_with(state: ClusterState, placed: PlacedPod, pod: PodSpec) -> set[str]:
    """Return the pods evicted with a pod: itself or its whole gang; none if one of them is protected."""
    gang = placed.pod.gang
    is_single = gang is None or gang.disruption_mode == "Single"
    members = [placed] if is_single else [b for b in state.placed_pods.values() if b.pod.gang == gang]
    allowed = all(b.pod.priority < pod.priority and b.pod.preemptible for b in members)
    return {b.pod.key for b in members} if allowed else set()


def started(placed: PlacedPod) -> int:
    return int("".join(c for c in placed.pod.created_at if c.isdigit()) or 10**14 - 1)


def important_first(placed_pods: list[PlacedPod]) -> list[PlacedPod]:
    return sorted(placed_pods, key=lambda b: (-b.pod.priority, started(b), b.pod.key))


def breaking(state: ClusterState, units: list[set[str]]) -> set[str]:
    """Return the pods that would violate the budget if all of them were evicted, highest priority first."""
    if not state.budgets:
        return set()
    remaining = (
        sum(b.pod.labels.get("app") == "web" for b in state.placed_pods.values()) - state.budgets[0].desired_healthy
    )
    found = set()
    for unit in units:
        for placed in important_first([state.placed_pods[key] for key in unit]):
            if placed.pod.labels["app"] == "web":
                remaining -= 1
                if remaining < 0:
                    found.add(placed.pod.key)
    return found


def cost(state: ClusterState, row: int, victims: set[str], broken: set[str]) -> Cost:
    found = [state.placed_pods[key] for key in victims]
    highest = max(b.pod.priority for b in found)
    total = sum(b.pod.priority + OFFSET for b in found)
    start = min(started(b) for b in found if b.pod.priority == highest)
    return (len(victims & broken), highest, total, len(found), -start, row)


def units_on(state: ClusterState, row: int, pod: PodSpec) -> list[set[str]]:
    """Return the possible victims of a node, highest priority first; a gang has the lowest priority of its members."""
    units: list[set[str]] = []
    for placed in reversed(important_first(list(state.on_row[row].values()))):
        unit = evicted_with(state, placed, pod)
        if unit and unit not in units:
            units.append(unit)
    return units[::-1]


def kube_scheduler_choice(state: ClusterState, pod: PodSpec) -> tuple[Cost, str] | None:
    """Select victims like kube-scheduler, on every node."""
    best: tuple[Cost, str] | None = None
    for row, report in enumerate(state.reports):
        units = units_on(state, row, pod)
        removed = set().union(*units) if units else set()
        if not removed or not fits_without(state, pod, row, removed):
            continue
        broken = breaking(state, units)
        avoided = [u for u in units if u & broken]
        for unit in [*avoided, *(u for u in units if u not in avoided)]:
            if fits_without(state, pod, row, removed - unit):
                removed -= unit
        if not removed:
            continue
        found = (cost(state, row, removed, broken), report.name)
        best = found if best is None else min(best, found)
    return best


@pytest.mark.parametrize("seed", range(150))
def test_preemption_is_valid_and_never_worse_than_kube_scheduler(seed: int) -> None:
    generator = random.Random(seed)
    state, pod = a_cluster(generator), a_new_pod(generator)
    before = state.digest(), state.columns.load.tobytes(), dict(state.placed_pods)
    outcome = Scheduler(state, ASKING).schedule(pod)
    if outcome.node is not None:
        return
    assert (state.digest(), state.columns.load.tobytes()) == before[:2]
    assert dict(sorted(state.placed_pods.items())) == dict(sorted(before[2].items()))
    theirs = kube_scheduler_choice(state, pod)
    if outcome.eviction is None:
        assert theirs is None
        return
    assert theirs is not None
    row, victims = state.row_of[outcome.eviction.node], set(outcome.eviction.victims)
    assert fits_without(state, pod, row, victims)
    assert all(state.placed_pods[key].pod.priority < pod.priority for key in victims)
    units = units_on(state, row, pod)
    for unit in units:
        if unit <= victims:
            assert not fits_without(state, pod, row, victims - unit), "a victim could have stayed"
    ours = cost(state, row, victims, breaking(state, units))
    assert ours <= theirs[0]
    assert sum(map(bool, outcome.eviction.budgets)) == ours[0]


def test_random_clusters_do_need_evictions() -> None:
    """The comparison above is meaningful only if the cases are mixed."""
    counts = {"placed": 0, "evicts": 0, "waits": 0}
    for seed in range(150):
        generator = random.Random(seed)
        state, pod = a_cluster(generator), a_new_pod(generator)
        outcome = Scheduler(state, ASKING).schedule(pod)
        counts["placed" if outcome.node else "evicts" if outcome.eviction else "waits"] += 1
    assert counts["evicts"] >= 40
    assert counts["waits"] >= 30


@pytest.mark.parametrize("seed", range(40))
def test_small_first_order_is_minimal_for_cpu(seed: int) -> None:
    # All with one priority: the fewest pods whose CPUs add up to the missing amount.
    generator = random.Random(seed)
    sizes = [generator.randint(1, 4) * 500 for _ in range(generator.randint(2, 6))]
    node = a_node("n").cpu(f"{sum(sizes)}m").build()
    running = [a_pod(f"r{i}").cpu(f"{size}m").memory("1Mi").running_on("n").build() for i, size in enumerate(sizes)]
    asked = generator.choice([1000, 2000, 3000])
    state = ClusterState([node], running)
    pod = a_pod("new").cpu(f"{asked}m").memory("1Mi").priority(1).build()
    eviction = Scheduler(state, ASKING).schedule(pod).eviction
    enough = [n for n in range(1, len(sizes) + 1) for some in combinations(sizes, n) if sum(some) >= asked]
    assert (eviction is None) == (not enough)
    if eviction is not None:
        assert len(eviction.victims) == min(enough)


def assert_relieved_load(state: ClusterState, removable: PreemptiblePods) -> None:
    """Compare the load without the possible victims with that of a state without these pods."""
    removable._follow(state)
    fork = state.fork()
    for placed in (placed for pods in removable.on_row for placed in pods):
        fork.forget(placed.pod.key)
    assert (removable.relieved.load == fork.columns.load).all()


@pytest.mark.parametrize("seed", range(40))
def test_cached_result_equals_a_fresh_search(seed: int) -> None:
    generator = random.Random(seed)
    state = a_cluster(generator)
    kept = Scheduler(state, ASKING, evicts=True)
    shapes = [a_new_pod(generator) for _ in range(3)]
    for number in range(20):
        asked = generator.choice(shapes)
        pod = msgspec.structs.replace(asked, name=f"new-{number}")
        fresh = Scheduler(state.fork(), ASKING, evicts=True).schedule(pod)
        outcome = kept.schedule(pod)
        assert (outcome.node, outcome.eviction) == (fresh.node, fresh.eviction)
        for removable in state.derived.get(PreemptiblePods, {}).values():
            assert_relieved_load(state, removable)
        if generator.random() < 0.3 and state.placed_pods:
            state.forget(generator.choice(sorted(state.placed_pods)))
        if generator.random() < 0.1:
            report = generator.choice(state.reports)
            state.apply_report(report)


GANGS = policy_of("gang-sort", *FILTERS, "least-allocated", "gang", "preemption")


def schedule_gang(seed: int) -> tuple[ClusterState, list[Outcome], int]:
    """Schedule a random gang of priority 3 on a random cluster; return the state, the outcomes and the minimum."""
    generator = random.Random(seed)
    state, least = a_cluster(generator), generator.randint(1, 4)
    shapes = [a_new_pod(generator) for _ in range(2)]
    pods = [
        msgspec.structs.replace(
            generator.choice(shapes), name=f"g-{number}", priority=3, preempts=True, gang=GangMember("new", least)
        )
        for number in range(generator.randint(least, 5))
    ]
    scheduler = Scheduler(state, GANGS, evicts=True)
    outcomes = [scheduler.schedule(pod) for pod in GANGS.queue(pods, state)]
    scheduler.settle()
    return state, outcomes, least


@pytest.mark.parametrize("seed", range(120))
def test_gang_starts_after_evictions_or_changes_nothing(seed: int) -> None:
    before = a_cluster(random.Random(seed))
    state, outcomes, least = schedule_gang(seed)
    started = [outcome for outcome in outcomes if outcome.node is not None]
    evicted = {placed.pod.key: placed.pod for outcome in outcomes for placed in outcome.evicted}
    assert not any(outcome.is_waiting for outcome in outcomes)
    assert len(started) >= least or not started
    others = {key for key in state.placed_pods if not key.startswith("default/g-")}
    assert others == before.placed_pods.keys() - evicted.keys()
    assert all(pod.priority < 3 and pod.preemptible for pod in evicted.values())
    assert not ({"default/team"} & state.gangs.placed.keys() and any(evicted_whole(pod) for pod in evicted.values()))
    if not started:
        assert (state.digest(), state.columns.load.tobytes()) == (before.digest(), before.columns.load.tobytes())


def evicted_whole(pod: PodSpec) -> bool:
    return pod.gang is not None and pod.gang.disruption_mode == "All"


def test_random_gangs_do_need_evictions() -> None:
    """The test above is meaningful only if the cases are mixed."""
    results = [schedule_gang(seed)[1] for seed in range(120)]
    assert sum(any(outcome.evicted for outcome in outcomes) for outcomes in results) >= 20
    assert sum(all(outcome.node is None for outcome in outcomes) for outcomes in results) >= 20
