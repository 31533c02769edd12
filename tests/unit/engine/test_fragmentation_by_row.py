"""Fragmentation by row equals its definition, on worked and random nodes, and adds up to the cluster's value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from hetsched.contracts.objects.allocation import CardGrant
from hetsched.contracts.objects.cards import model_accepted
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.contracts.units import GPU_RESOURCES
from hetsched.engine.cluster.balance import gpu_fragments
from hetsched.engine.cluster.columns import Window
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.gpu.fragmentation import demand_mix, expected_unused, published_mix, row_fragments
from hetsched.engine.gpu.workload_mix import Mix, mix_of
from tests.builders import a_node, a_pod
from tests.unit.engine.draws import mixed_fleets, mixed_pods
from tests.unit.engine.fleet import built, cluster


def by_hand(state: ClusterState, row: int, mix: list[tuple[Shape, float]]) -> float:
    """Return F of one node from its reservations, shape by shape and GPU by GPU."""
    report = state.reports[row]
    held = [placed.allocation.gpus for placed in state.on_row[row].values()]
    free = {card.index: 1000 for card in state.cards[row]}
    for grant in (grant for grants in held for grant in grants):
        free[grant.index] -= grant.milli
    models = {card.index: card.model or "" for card in state.cards[row]}
    total, lost = sum(free.values()), 0.0
    for shape, share in mix:
        demand = shape.gpu
        if demand is None or not demand.count:
            lost += share * total
            continue
        fits = True
        for resource, amount in shape.requests:
            if resource in GPU_RESOURCES or resource not in state.resources.index:
                continue
            used = sum(placed.pod.shape.request(resource) for placed in state.on_row[row].values())
            offered = report.allocatable.get(resource, 2**60 if resource == "pods" else 0)
            fits = fits and used + amount <= offered
        usable = [i for i, milli in free.items() if milli >= demand.milli and model_accepted(demand, models[i])]
        if not fits or len(usable) < demand.count:
            lost += share * total
        else:
            lost += share * sum(milli for i, milli in free.items() if i not in usable)
    return lost


@settings(max_examples=80)
@given(mixed_fleets(), mixed_pods())
def test_rows_equal_the_definition_on_random_nodes(fleet: list[NodeReport], pods: list[PodSpec]) -> None:
    state = ClusterState(fleet)
    for number, pod in enumerate(pods[1:]):
        request = state.compile(pod)
        row = number % len(fleet)
        demand = pod.shape.gpu
        free = state.columns.field("card_milli_free")[:, row]
        if demand is None or int((free >= demand.milli).sum()) >= demand.count:
            state.assume(request, row)
    typical = mix_of(pods).typical()
    rows = row_fragments(demand_mix(typical, state), state.all_rows)
    assert rows.tolist() == pytest.approx([by_hand(state, row, typical) for row in range(len(fleet))])
    assert rows.sum() == pytest.approx(gpu_fragments(state, typical))
    some = np.array([0, len(fleet) - 1, 0])
    assert row_fragments(demand_mix(typical, state), Window(state.columns, some)).tolist() == rows[some].tolist()


def test_published_mix_uses_cpu_and_gpus_only() -> None:
    # 3 pods of (1 CPU, 1 card) in two memory sizes are one shape of 3; with 1 pod of 2 CPU: shares 3/4 and 1/4
    pods = [built(a_pod(f"p{i}").gpu(1).memory(size)) for i, size in enumerate(["1Gi", "2Gi", "1Gi"])]
    state = cluster([a_node("n").gpus(1)])
    state.use_mix(mix_of([*pods, built(a_pod("q").gpu(1).cpu(2))]))
    mix = published_mix(state)
    assert (mix.needs[:, 0].tolist(), mix.share.tolist()) == ([1000, 2000], [0.75, 0.25])


def test_shares_of_the_typical_shapes_add_up_to_one() -> None:
    # 90 + 6 of 100 pods are typical: 90 / 96 and 6 / 96
    shapes = [built(a_pod().gpu(1).cpu(cpu)).shape for cpu in (1, 2, 3)]
    state = cluster([a_node("n").gpus(1)])
    state.use_mix(Mix(tuple(zip(shapes, (90, 6, 4), strict=True))))
    assert published_mix(state).share.tolist() == pytest.approx([0.9375, 0.0625])


def test_expected_remaining_gpu_capacity() -> None:
    # Sizes 600 and 400, equally often. W(399) = 399; W(400) = W(0) = 0; W(599) = W(199) = 199;
    # W(600) = (W(0) + W(200)) / 2 = 100; W(1000) = (W(400) + W(600)) / 2 = 50
    rests = expected_unused(mix_of([built(a_pod(f"p{milli}").gpu(1, milli=milli)) for milli in (600, 400)]))
    assert rests[[0, 399, 400, 599, 600, 1000]].tolist() == [0, 399, 0, 199, 100, 50]


def test_rare_sizes_do_not_count() -> None:
    # 2 pods of 8 whole cards and 1 share of 500: 16 of 17 cards are 94 %, so 500 still counts, W(500) = 0;
    # with 2 more of 8 cards 32 of 33 are 97 %: 500 is rare, W(500) = 500
    share = built(a_pod("s").gpu(1, milli=500))
    for count, rest in ((2, 0), (4, 500)):
        mix = mix_of([*(built(a_pod(f"w{i}").gpu(8)) for i in range(count)), share])
        assert expected_unused(mix)[500] == rest


def test_new_mix_invalidates_earlier_evaluations() -> None:
    state = cluster([a_node("n").gpus(2)], [a_pod("r").gpu(1, milli=700).running_on("n", CardGrant(1, 700, 0))])
    # The running pods are the first mix: a pod of 700 fits card 0, the 300 left of card 1 are lost.
    state.use_mix(state.placed_mix())
    assert row_fragments(published_mix(state), state.all_rows).tolist() == [300]
    state.use_mix(mix_of([built(a_pod("s").gpu(1, milli=200))]))
    assert row_fragments(published_mix(state), state.all_rows).tolist() == [0]
