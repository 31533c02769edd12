"""The openb study's baselines, each by its published formula."""

from __future__ import annotations

import pytest

from hetsched.contracts.objects.allocation import CardGrant
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import score

LARGEST = a_node("z-largest").cpu(128).memory("1Ti").gpus(8)


def test_best_fit_counts_cpu_and_gpu_alike() -> None:
    # After 32 cores and 2 cards of the largest node: 96 of 128 and 6 of 8 left, int(100 * (1 - 0.75)) = 25.
    # On 64 cores and 4 cards: 32 and 2 left, int(100 * (1 - 0.25)) = 75. A CPU pod pays for free cards too:
    # largest: 96 and 8 left, int(100 * (1 - 0.875)) = 12; small: 32 and 4 left, int(100 * (1 - 0.375)) = 62.
    fleet = [LARGEST, a_node("small").cpu(64).gpus(4)]
    assert score("best-fit", a_pod().cpu(32).gpu(2), fleet) == {"z-largest": 25, "small": 75}
    assert score("best-fit", a_pod().cpu(32), fleet) == {"z-largest": 12, "small": 62}


def test_dot_product_prefers_the_least_aligned_node() -> None:
    # 32 cores and 2 cards are 0.25 and 0.25. Largest, all free: int(100 * (1 - (0.25 + 0.25) / 2)) = 75.
    # 96 cores and 4 cards: int(100 * (1 - (0.75 * 0.25 + 0.5 * 0.25) / 2)) = int(84.375) = 84.
    fleet = [LARGEST, a_node("other").cpu(96).gpus(4)]
    assert score("dot-product", a_pod().cpu(32).gpu(2), fleet) == {"z-largest": 75, "other": 84}


def test_gpu_packing_order_is_shared_gpus_used_nodes_fresh_nodes() -> None:
    # Cards 1000 and 450 free. 300 milli: shared card, 100 - 45 // 10 = 96. One card: 50 - 1 = 49.
    # Two cards of a used node of 3: 50 - 2 = 48. Fresh node of 8: max(33 - 8, 8) = 25.
    used = a_node("used").gpus(3)
    running = [a_pod("r").gpu(1, milli=550).running_on("used", CardGrant(1, 550, 0))]
    fleet = [LARGEST, used]
    assert score("gpu-packing", a_pod().gpu(1, milli=300), fleet, running) == {"z-largest": 25, "used": 96}
    assert score("gpu-packing", a_pod().gpu(1), fleet, running) == {"z-largest": 25, "used": 49}
    assert score("gpu-packing", a_pod().gpu(2), fleet, running) == {"z-largest": 25, "used": 48}
    assert score("gpu-packing", a_pod().gpu(1, milli=500), fleet, running) == {"z-largest": 25, "used": 49}
    assert score("gpu-packing", a_pod(), fleet, running) is None


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        # Largest node: 8 cards. `mixed` has a shared pod (500) and one of a card: 1500 used of its 8000,
        # 25 * 1500 // 8000 = 4; `shared` 500 used: 25 * 500 // 8000 = 1; `empty` of 8: 25 * 0 = 0
        (a_pod().gpu(1, milli=200), {"mixed": 50 + 4, "shared": 75 + 1, "z-largest": 25}),
        (a_pod().gpu(1), {"mixed": 50 + 4, "shared": 0 + 1, "z-largest": 25}),
        (a_pod().gpu(2), {"mixed": 0 + 4, "shared": 0 + 1, "z-largest": 25}),
    ],
)
def test_gpu_clustering_keeps_equal_pods_together(pod, expected) -> None:
    running = [
        a_pod("a").gpu(1, milli=500).running_on("mixed", CardGrant(0, 500, 0)),
        a_pod("b").gpu(1).running_on("mixed", CardGrant(1, 1000, 0)),
        a_pod("c").gpu(1, milli=500).running_on("shared", CardGrant(0, 500, 0)),
    ]
    fleet = [LARGEST, a_node("mixed").gpus(8), a_node("shared").gpus(8)]
    assert score("gpu-clustering", pod, fleet, running) == expected
    assert score("gpu-clustering", a_pod(), fleet, running) is None
