"""Gangs in topology domains compared with an exhaustive search on small random clusters."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations_with_replacement

from hypothesis import given, settings
from hypothesis import strategies as st

from hetsched.contracts.objects.allocation import CardGrant
from hetsched.contracts.objects.workload import GangMember, GangTopology, PodSpec
from hetsched.engine.framework.cycle import Scheduler
from tests.builders import NodeBuilder, PodBuilder, a_card, a_node, a_pod
from tests.unit.engine.fleet import policy_of, scheduler

RACK, BLOCK = "rack", "block"
POLICY = policy_of(
    "gang-sort", "node-ready", "isa-match", "taints", "node-affinity", "resource-fit", "gpu-fit", "least-allocated",
    "gang",
)  # fmt: skip

# A node: rack ("" without label), CPUs, free milli of each GPU, architecture, GPU memory.
NODE = st.tuples(
    st.sampled_from(["a", "b", "c", ""]),
    st.integers(0, 4),
    st.lists(st.sampled_from([0, 300, 500, 1000]), max_size=3),
    st.sampled_from(["amd64", "arm64"]),
    st.sampled_from([16384, 40960]),
)
Node = tuple[str, int, list[int], str, int]
# A member: CPUs, GPUs, milli of each GPU, GPU memory: the minimum of a whole GPU, or the used memory of a shared GPU.
MEMBER = st.sampled_from([(1, 0, 1000, 0), (2, 0, 1000, 0), (1, 1, 1000, 0), (1, 2, 1000, 0), (1, 1, 500, 0),
                          (2, 1, 300, 0), (1, 1, 1000, 30000), (0, 1, 500, 30000)])  # fmt: skip
Member = tuple[int, int, int, int]


def built(fleet: list[Node]) -> tuple[list[NodeBuilder], list[PodBuilder]]:
    nodes, pods = [], []
    for number, (rack, cpu, cards, arch, memory) in enumerate(fleet):
        name = f"n{number}"
        node = a_node(name).cpu(cpu + len(cards)).arch(arch).labelled({RACK: rack} if rack else {})
        nodes.append(node.gpus(len(cards), memory_mib=memory) if cards else node)
        for index, free in enumerate(cards):
            running = a_pod(f"run-{name}-{index}").cpu(1).memory(0)
            if free < 1000:
                used = 1000 - free
                grant = CardGrant(index, used, 0, a_card(index).uuid)
                running = running.gpu(1, milli=used).running_on(name, grant)
            else:
                running = running.running_on(name)
            pods.append(running)
    return nodes, pods


def pods_of(wanted: list[Member], least: int, topology: GangTopology) -> list[PodBuilder]:
    gang = GangMember("g", least, topology=topology)
    found = []
    for number, (cpu, cards, milli, memory) in enumerate(wanted):
        pod = a_pod(f"g-{number}").cpu(cpu).memory(0).isa("amd64").having(gang=gang)
        found.append(pod.gpu(cards, milli=milli, memory_mib=memory) if cards else pod)
    return found


def holds(node: Node, member: Member, count: int) -> bool:
    """Return whether a node can hold `count` equal members, by assigning them to GPUs in every way."""
    _, cpus, cards, arch, memory = node
    cpu, asked, milli, least = member
    if count == 0:
        return True
    if arch != "amd64" or cpu * count > cpus or (asked and least > memory):
        return False
    if not asked:
        return True
    choices = combinations_with_replacement(range(len(cards)), asked * count)
    return any(
        all(milli * choice.count(card) <= cards[card] and least * choice.count(card) <= memory for card in set(choice))
        for choice in choices
    )


def most_in(fleet: list[Node], member: Member, most: int) -> int:
    """Return the maximum number of equal members that these nodes can hold, up to `most`."""
    return min(most, sum(max(n for n in range(most + 1) if holds(node, member, n)) for node in fleet))


def racks_of(fleet: list[Node]) -> dict[str, list[Node]]:
    found = defaultdict(list)
    for node in fleet:
        if node[0]:
            found[node[0]].append(node)
    return found


def run(deciding: Scheduler, pods: list[PodSpec]) -> dict[str, int]:
    """Return the row of each placed pod."""
    outcomes = [deciding.schedule(pod) for pod in deciding.policy.queue(pods, deciding.state)]
    deciding.settle()
    return {outcome.pod.name: outcome.row for outcome in outcomes if outcome.node is not None}


@settings(max_examples=150, deadline=None)
@given(st.lists(NODE, min_size=1, max_size=6), MEMBER, st.integers(1, 4), st.data())
def test_equal_members_are_placed_exactly_if_a_domain_fits_them(
    fleet: list[Node], member: Member, count: int, data: st.DataObject
) -> None:
    least = data.draw(st.integers(1, count))
    nodes, running = built(fleet)
    deciding = scheduler(nodes, running, policy=POLICY)
    before = deciding.state.digest()
    pods = [pod.build() for pod in pods_of([member] * count, least, GangTopology((), (RACK,)))]
    placed = run(deciding, pods)
    capacity = {rack: most_in(members, member, count) for rack, members in racks_of(fleet).items()}
    best = max(capacity.values(), default=0)
    assert len(placed) == (best if best >= least else 0)
    if placed:
        assert len({fleet[row][0] for row in placed.values()} | {""}) == 2
    else:
        assert deciding.state.digest() == before


@settings(max_examples=100, deadline=None)
@given(st.lists(NODE, min_size=1, max_size=6), MEMBER, st.integers(1, 4))
def test_preferred_level_is_used_if_and_only_if_a_domain_holds_all_members(
    fleet: list[Node], member: Member, count: int
) -> None:
    nodes, running = built(fleet)
    deciding = scheduler(nodes, running, policy=POLICY)
    pods = [pod.build() for pod in pods_of([member] * count, count, GangTopology((RACK,)))]
    placed = run(deciding, pods)
    capacity = [most_in(members, member, count) for members in racks_of(fleet).values()]
    everywhere = most_in(fleet, member, count)
    assert len(placed) == (count if everywhere == count else 0)
    if placed and max(capacity, default=0) == count:
        assert len({fleet[row][0] for row in placed.values()}) == 1


@settings(max_examples=100, deadline=None)
@given(st.lists(NODE, min_size=1, max_size=6), st.lists(MEMBER, min_size=1, max_size=5), st.data())
def test_different_members_are_placed_whole_in_one_domain(
    fleet: list[Node], wanted: list[Member], data: st.DataObject
) -> None:
    """A domain may be missed for different members, but the placements in the selected domain are valid."""
    least = data.draw(st.integers(1, len(wanted)))
    nodes, running = built(fleet)
    deciding = scheduler(nodes, running, policy=POLICY)
    placed = run(deciding, [pod.build() for pod in pods_of(wanted, least, GangTopology((), (RACK,)))])
    assert not placed or len(placed) >= least
    assert len({fleet[row][0] for row in placed.values()}) <= 1
    for row, node in enumerate(fleet):
        there = [wanted[int(name.removeprefix("g-"))] for name, at in placed.items() if at == row]
        assert sum(cpu for cpu, *_ in there) <= node[1]
        assert not there or node[0]
