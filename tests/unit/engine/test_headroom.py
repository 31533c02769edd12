"""Headroom, node by node, equals the number of copies that scheduling one by one places, under every policy."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.simulation.headroom import Copies, Headroom, TrialBudget, alone
from tests.builders import PodBuilder, a_node, a_pod
from tests.unit.engine.draws import NAMESPACES, mixed_fleets, mixed_pods
from tests.unit.engine.fleet import scheduler

PLENTY = TrialBudget(10**9)
MOST = 100


def by_node(deciding: Scheduler, copies: Copies) -> dict[str, int]:
    assert copies.exact.all()
    return {
        name: count for name, count in zip(deciding.state.columns.names, copies.counts.tolist(), strict=True) if count
    }


def one_by_one(deciding: Scheduler, pod: PodSpec) -> dict[str, int]:
    """Schedule copies on a copy of the state until one finds no node."""
    apart = Scheduler(deciding.state.fork(), deciding.policy)
    placed: Counter[str] = Counter()
    for number in range(MOST):
        copy = msgspec.structs.replace(pod, name=f"copy-{number}")
        node = apart.schedule(copy, preempts=False).node
        if node is None:
            return dict(placed)
        placed[node] += 1
    pytest.fail("more copies fit than are counted")


def asking(pod: PodSpec) -> PodSpec:
    """Return a pod of the same shape without relations to other pods."""
    return PodSpec("headroom", "one", alone(pod.shape))


@settings(max_examples=80)
@given(mixed_fleets(), mixed_pods(), st.sampled_from(sorted(BUILTIN)))
def test_headroom_equals_placements_on_random_fleets(fleet: list[NodeReport], pods: list[PodSpec], policy: str) -> None:
    narrow = [msgspec.structs.replace(node, allocatable={**node.allocatable, "pods": 6}) for node in fleet]
    deciding, headroom = scheduler(narrow, policy=policy, namespaces=NAMESPACES), Headroom()
    for number, pod in enumerate(pods[:6]):
        wanted = asking(pods[(number + 1) % len(pods)])
        deciding.state.compile(wanted)  # a resource that is new widens the columns
        before = deciding.state.columns.load.tobytes()
        counted = by_node(deciding, headroom.count(deciding, wanted, PLENTY))
        assert deciding.state.columns.load.tobytes() == before
        assert counted == one_by_one(deciding, wanted)
        deciding.schedule(msgspec.structs.replace(pod, name=f"{pod.name}-{number}"))


def counted(pod: PodBuilder, *nodes: Any, running: tuple[Any, ...] = ()) -> dict[str, int]:
    deciding = scheduler(nodes, running, policy="hetsched")
    return by_node(deciding, Headroom().count(deciding, pod.build(), PLENTY))


def test_scarcest_resource_limits_headroom() -> None:
    # 8 CPUs less 1 in use: floor(7 / 2) = 3; memory floor((32 - 1) / 4) = 7; pods 110 - 1.
    assert counted(a_pod().cpu("2").memory("4Gi"), a_node(), running=(a_pod("r").running_on("node"),)) == {"node": 3}


def test_quarters_of_cards_stop_at_their_memory() -> None:
    # A card of 16 GiB takes floor(16384 / 6144) = 2 quarters of 6 GiB, though four quarters of its time are free.
    node = a_node().cpu("64").gpus(2, "Tesla-T4", 16384)
    assert counted(a_pod().gpu(1, milli=250, memory_mib=6144), node) == {"node": 4}


def test_whole_cpus_stop_at_the_zone() -> None:
    # Each zone of 4 CPUs takes one pod of 3, though 8 - 6 = 2 CPUs are left over.
    node = a_node().zone("node-0", "0-3").zone("node-1", "4-7")
    assert counted(a_pod().cpu("3").guaranteed().numa(True, "exclusive"), node) == {"node": 2}


def test_cordoned_node_has_no_headroom() -> None:
    assert counted(a_pod(), a_node("a").cordoned(), a_node("b").cpu("2")) == {"b": 2}


def test_result_within_the_budget_is_a_lower_bound() -> None:
    nodes = [a_node(f"n{number}").cpu(8 + number).gpus(2) for number in range(3)]
    deciding, headroom = scheduler(nodes, policy="hetsched"), Headroom()
    first = headroom.count(deciding, a_pod().gpu(1).build(), TrialBudget(1))
    assert first.counts.tolist() == [2, 1, 1]
    assert first.exact.tolist() == [True, False, False]
    second = headroom.count(deciding, a_pod().gpu(1).build(), PLENTY)
    assert second.counts.tolist() == [2, 2, 2]
    assert bool(np.all(second.exact))
