"""GPUs that another device plugin chose: the ledger records them, reserves none twice, and reports problems."""

from __future__ import annotations

import pytest

from hetsched.contracts.objects.allocation import CardGrant
from hetsched.inventory.models import Cluster, Node
from hetsched.journal.audit import details_of
from hetsched.journal.models import AuditEntry
from hetsched.placement.actions import DeviceChanges, reconcile_devices
from hetsched.placement.cluster_snapshot import load_state
from hetsched.placement.models import DevicePluginAllocation, Pod, Reservation
from hetsched.placement.queries.invariants import check_invariants
from hetsched.placement.scheduler_cache import cache_of
from tests.builders import PodBuilder, a_card, a_node, a_pod
from tests.situations import a_cluster, placing, recorded, submitted

pytestmark = pytest.mark.django_db
SHARE = 500


def cluster_of(*models: str) -> Cluster:
    """Return a cluster of one node with GPUs of these models, of 40960 MiB each, with UUIDs GPU-0, GPU-1…"""
    cards = tuple(a_card(index, model, uuid=f"GPU-{index}") for index, model in enumerate(models))
    return a_cluster(a_node("n1").having(gpus=cards))


def running(cluster: Cluster, name: str, *cards: int, milli: int = 1000) -> None:
    pod: PodBuilder = a_pod(name).gpu(len(cards), milli=milli)
    submitted(cluster, pod)
    memory = 40960 if milli == 1000 else 20480
    recorded(cluster, placing(cluster, "n1", *(CardGrant(card, milli, memory, f"GPU-{card}") for card in cards)))
    Pod.objects.filter(name=name).update(uid=f"uid-{name}")


def report_devices(cluster: Cluster, advisory: bool = True, **cards: list[str]) -> DeviceChanges:
    """Report the devices of the main containers of these pods as the agent does."""
    devices = {f"uid-{name}": {"main": {"nvidia.com/gpu": ids}} for name, ids in cards.items()}
    return reconcile_devices(cluster.pk, "n1", devices, advisory=advisory)


def reserved() -> dict[str, list[tuple[int, str | None, int]]]:
    rows = Reservation.objects.filter(active=True).select_related("pod")
    return {row.pod.name: [(card.index, card.uuid, card.memory_mib) for card in row.allocation.gpus] for row in rows}


def is_sound(cluster: Cluster) -> None:
    assert check_invariants() == []
    with cache_of(cluster.pk).locked_snapshot() as snapshot:
        assert snapshot.state.digest() == load_state(cluster.pk).state.digest()


def test_pod_is_recorded_on_its_actual_gpu() -> None:
    cluster = cluster_of("A100-SXM4-40GB", "A100-SXM4-40GB")
    running(cluster, "p", 0)
    with cache_of(cluster.pk).locked_snapshot():
        pass
    assert report_devices(cluster, p=["GPU-1"]) == DeviceChanges(("default/p",), {})
    assert reserved() == {"p": [(1, "GPU-1", 40960)]}
    row = DevicePluginAllocation.objects.get()
    assert (row.advisory, row.cards, row.problem) == (True, (1,), "")
    assert [card.index for card in row.granted] == [0]
    allocation = Pod.objects.get(name="p").allocation
    assert allocation is not None
    assert [card.index for card in allocation.gpus] == [1]
    is_sound(cluster)


def test_known_assignment_writes_nothing() -> None:
    cluster = cluster_of("T4", "T4")
    running(cluster, "p", 0)
    report_devices(cluster, p=["GPU-1"])
    revision = Cluster.objects.get(pk=cluster.pk).revision
    assert report_devices(cluster, p=["GPU-1"]) == DeviceChanges()
    assert Cluster.objects.get(pk=cluster.pk).revision == revision
    assert [card.index for card in DevicePluginAllocation.objects.get().granted] == [0]


def test_swapped_gpus_are_recorded() -> None:
    cluster = cluster_of("T4", "T4", "T4")
    running(cluster, "p", 0)
    running(cluster, "q", 1)
    with cache_of(cluster.pk).locked_snapshot():
        pass
    assert report_devices(cluster, p=["GPU-1"], q=["GPU-0"]).moved == ("default/p", "default/q")
    assert {name: cards[0][0] for name, cards in reserved().items()} == {"p": 1, "q": 0}
    is_sound(cluster)


def test_pod_without_an_assignment_moves_for_one_with_it() -> None:
    cluster = cluster_of("T4", "T4", "V100")
    running(cluster, "p", 0)
    running(cluster, "q", 1)
    assert report_devices(cluster, p=["GPU-1"]).problems == {}
    assert {name: cards[0][0] for name, cards in reserved().items()} == {"p": 1, "q": 0}
    assert DevicePluginAllocation.objects.get(pod__name="q").cards is None
    is_sound(cluster)


def test_pod_is_not_moved_to_a_lesser_gpu() -> None:
    cluster = cluster_of("T4", "V100")
    running(cluster, "p", 0)
    running(cluster, "q", 1)
    followed = report_devices(cluster, p=["GPU-1"])
    assert followed.moved == ()
    assert followed.problems == {
        "default/p": "the kubelet allocated GPU 1, which is also assigned to another pod",
        "default/q": "the kubelet also allocated the pod's GPU 1 to another pod",
    }
    assert {name: cards[0][0] for name, cards in reserved().items()} == {"p": 0, "q": 1}
    assert set(DevicePluginAllocation.objects.values_list("problem", flat=True)) == set(followed.problems.values())
    is_sound(cluster)


def test_gpu_of_two_pods_is_reported_and_never_recorded() -> None:
    cluster = cluster_of("T4", "T4", "T4")
    running(cluster, "p", 0)
    running(cluster, "q", 1)
    followed = report_devices(cluster, p=["GPU-2"], q=["GPU-2"])
    assert followed.moved == ("default/p",)
    assert followed.problems == {
        "default/q": "the kubelet allocated GPU 2, which is also assigned to another pod",
        "default/p": "the kubelet also allocated the pod's GPU 2 to another pod",
    }
    assert {name: cards[0][0] for name, cards in reserved().items()} == {"p": 2, "q": 1}
    is_sound(cluster)
    report_devices(cluster, p=["GPU-2"], q=["GPU-2"])
    entry = AuditEntry.objects.get(action="node.cards")  # once, not with every report
    assert (entry.object_name, details_of(entry)) == ("fleet/n1", followed.problems)
    # The problem is reported until it is over.
    assert report_devices(cluster, p=["GPU-2"], q=["GPU-1"]).problems == {}
    assert set(DevicePluginAllocation.objects.values_list("problem", flat=True)) == {""}


def test_shares_move_until_the_gpu_is_full() -> None:
    cluster = cluster_of("T4", "T4")
    for name, card in (("p", 0), ("q", 0), ("r", 1)):
        running(cluster, name, card, milli=SHARE)
    # Replicas of one GPU are that GPU. 500 + 500 = 1000 fit, a third share does not.
    followed = report_devices(cluster, p=["GPU-1::3"], q=["GPU-1::0"], r=["GPU-1::1"])
    assert followed.moved == ("default/p",)
    assert sorted(followed.problems) == ["default/p", "default/q", "default/r"]
    assert reserved() == {"p": [(1, "GPU-1", 20480)], "q": [(0, "GPU-0", 20480)], "r": [(1, "GPU-1", 20480)]}
    is_sound(cluster)


def test_correct_gpus_of_a_pod_are_kept() -> None:
    cluster = cluster_of("T4", "T4", "T4", "T4")
    running(cluster, "p", 0, 1)
    report_devices(cluster, p=["GPU-3", "GPU-1"])
    assert [card[0] for card in reserved()["p"]] == [3, 1]
    is_sound(cluster)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["GPU-9"], "the kubelet allocated GPU-9, which is not a whole GPU reported by this node"),
        (["MIG-1"], "the kubelet allocated MIG-1, which is not a whole GPU reported by this node"),
        (
            ["GPU-0", "GPU-1"],
            "the kubelet allocated GPU 0, GPU 1, but the number of GPUs assigned by hetsched is 1; additional GPUs "
            "are not reserved",
        ),
    ],
)
def test_device_outside_the_grant_is_reported(given: list[str], why: str) -> None:
    cluster = cluster_of("T4", "T4")
    running(cluster, "p", 0)
    followed = report_devices(cluster, p=given)
    assert followed.problems["default/p"].startswith(why)
    assert reserved()["p"][0][0] == 0
    is_sound(cluster)


def test_unidentified_assignment_displaces_no_pod() -> None:
    cluster = cluster_of("T4", "T4", "T4")
    running(cluster, "odd", 0)
    running(cluster, "p", 1)
    followed = report_devices(cluster, odd=["GPU-9"], p=["GPU-0"])
    assert {name: grants[0][0] for name, grants in reserved().items()} == {"odd": 0, "p": 1}
    assert followed.problems.keys() == {"default/odd", "default/p"}
    is_sound(cluster)


def test_unknown_pods_and_nodes_change_nothing() -> None:
    cluster = cluster_of("T4")
    assert report_devices(cluster, stranger=["GPU-0"]) == DeviceChanges()
    assert reconcile_devices(cluster.pk, "elsewhere", {}, advisory=True) == DeviceChanges()


def test_pod_that_is_placed_again_is_granted_again() -> None:
    cluster = cluster_of("T4", "T4")
    running(cluster, "p", 0)
    report_devices(cluster, p=["GPU-1"])
    DevicePluginAllocation.objects.update(reservation=0)  # that of an earlier allocation
    report_devices(cluster, p=["GPU-1"])
    assert [card.index for card in DevicePluginAllocation.objects.get().granted] == [1]


def test_node_totals_are_unchanged() -> None:
    cluster = cluster_of("T4", "T4")
    running(cluster, "p", 0)
    before = Node.objects.get().gpu_milli_used, dict(Node.objects.get().requested)
    report_devices(cluster, p=["GPU-1"])
    assert (Node.objects.get().gpu_milli_used, dict(Node.objects.get().requested)) == before == (1000, before[1])
