"""Use and balance of a cluster."""

import pytest

from hetsched.contracts.objects.allocation import CardGrant
from hetsched.engine.cluster.balance import cluster_balance, cluster_metrics, gpu_fragments, node_balance, workload_mix
from tests.builders import a_node, a_pod
from tests.unit.engine.fleet import built, cluster


def test_node_balance_falls_with_the_variance_of_use() -> None:
    # CPU 4/8 = 0.5, memory 8/32 = 0.25: mean 0.375, variance 0.125^2 = 0.015625 -> 0.984375
    state = cluster([a_node("n").cpu(8).memory("32Gi")], [a_pod("r").cpu(4).memory("8Gi").running_on("n")])
    assert node_balance(state).tolist() == [0.984375]


def test_network_and_disk_count_where_the_node_has_them() -> None:
    # CPU 0.5, memory 0.5, network 100/200 = 0.5, disk 0/100 = 0: mean 0.375,
    # variance (3 * 0.125^2 + 0.375^2) / 4 = 0.046875 -> 0.953125
    node = a_node("n").cpu(8).memory("32Gi").offering("hetsched.io/network-mbps", 200)
    node.offering("hetsched.io/disk-mbps", 100)
    running = a_pod("r").cpu(4).memory("16Gi").requesting("hetsched.io/network-mbps", 100).running_on("n")
    assert node_balance(cluster([node], [running])).tolist() == [0.953125]


def test_measured_use_counts_before_requests() -> None:
    # CPU measured 8/8 = 1, memory requested 16/32 = 0.5: mean 0.75, variance 0.0625 -> 0.9375
    node = a_node("n").cpu(8).memory("32Gi").using(cpu="8")
    running = a_pod("r").cpu(1).memory("16Gi").running_on("n")
    assert node_balance(cluster([node], [running])).tolist() == [0.9375]


def test_use_above_the_capacity_counts_as_full() -> None:
    # CPU measured 16/8 -> 1, memory measured 32/32 = 1 -> variance 0
    node = a_node("n").cpu(8).memory("32Gi").using(cpu="16", memory="32Gi")
    assert node_balance(cluster([node])).tolist() == [1.0]


def test_node_with_fewer_than_two_resources_is_balanced() -> None:
    state = cluster([a_node("n").cpu(8).memory(0)], [a_pod("r").cpu(4).memory(0).running_on("n")])
    assert node_balance(state).tolist() == [1.0]


def test_cluster_balance_is_the_mean_of_ready_nodes() -> None:
    # a 0.984375 (as above), b 1.0 -> 0.9921875; c is not Ready and does not count
    nodes = [a_node(name).cpu(8).memory("32Gi") for name in "ab"] + [a_node("c").not_ready()]
    running = [a_pod("r").cpu(4).memory("8Gi").running_on("a"), a_pod("s").cpu(4).memory(0).running_on("c")]
    assert cluster_balance(cluster(nodes, running)) == 0.9921875
    assert cluster_balance(cluster([])) == 1.0


def test_utilisation_and_cards_of_the_whole_cluster() -> None:
    # CPU 4 of 16, memory 8 of 64 GiB; GPUs: 1000 + 250 of 4000 milli granted, 2.75 GPUs left
    nodes = [a_node("a").cpu(8).memory("32Gi").gpus(2), a_node("b").cpu(8).memory("32Gi").gpus(2)]
    running = [
        a_pod("r").cpu(4).memory("8Gi").gpu(1).running_on("a", CardGrant(0, 1000, 40_960)),
        a_pod("s").cpu(0).memory(0).gpu(1, milli=250).running_on("b", CardGrant(1, 250, 10_240)),
    ]
    metrics = cluster_metrics(cluster(nodes, running))
    assert (metrics.cpu_utilization, metrics.memory_utilization) == (0.25, 0.125)
    assert (metrics.gpu_allocation, metrics.unallocated_gpus) == (0.3125, 2.75)
    assert metrics.gpu_fragmentation is None


def test_absent_resource_has_no_ratio() -> None:
    metrics = cluster_metrics(cluster([a_node("n").cpu(0)]))
    assert (metrics.cpu_utilization, metrics.gpu_allocation, metrics.unallocated_gpus) == (None, None, 0.0)


def test_workload_mix_covers_95_percent_of_the_pods() -> None:
    # 90 + 6 = 96 % are enough; the last 4 % are left out
    pods = [built(a_pod(f"p{i}").cpu(1 if i < 90 else 2 if i < 96 else 3)) for i in range(100)]
    assert [(shape.request("cpu"), share) for shape, share in workload_mix(pods)] == [(1000, 0.9), (2000, 0.06)]


def test_fragments_are_the_milli_that_a_shape_cannot_use() -> None:
    # Node with cards of 1000 and 300 free milli.
    #   whole card: fits one card, 300 stranded;  500 milli: likewise 300;  200 milli: fits both, 0
    #   two whole cards: does not fit, all 1300;  no GPU: all 1300
    node = a_node("n").gpus(2)
    state = cluster([node], [a_pod("r").gpu(1, milli=700).running_on("n", CardGrant(1, 700, 0))])
    for pod, lost in (
        (a_pod().gpu(1), 300),
        (a_pod().gpu(1, milli=500), 300),
        (a_pod().gpu(1, milli=200), 0),
        (a_pod().gpu(2), 1300),
        (a_pod(), 1300),
        (a_pod().gpu(1).cpu(99), 1300),  # no CPU for it: the whole node is out of reach
    ):
        assert gpu_fragments(state, [(built(pod).shape, 1.0)]) == lost
    # Half of the pods want a whole card and half two: 0.5 * 300 + 0.5 * 1300 = 800 of 2000 milli
    mix = [built(a_pod("x").gpu(1)), built(a_pod("y").gpu(2))]
    assert cluster_metrics(state, mix).gpu_fragmentation == pytest.approx(0.4)
