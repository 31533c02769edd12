import pytest

from hetsched.contracts.objects.cards import MAX_CARDS, cards_of
from tests.builders import a_card, a_node

A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.memory": "40536"}


def test_listed_gpus_have_precedence_without_unhealthy_ones() -> None:
    cards = (a_card(2), a_card(0), a_card(1, healthy=False))
    node = a_node().offering("nvidia.com/gpu", 8).having(gpus=cards).build()
    assert [card.index for card in cards_of(node)] == [0, 2]


def test_empty_gpu_list_precedes_the_device_count() -> None:
    assert cards_of(a_node().offering("nvidia.com/gpu", 8).having(gpus=()).build()) == ()


def test_counted_cards_have_the_facts_of_their_labels() -> None:
    cards = cards_of(a_node().offering("nvidia.com/gpu", 2).labelled(A100).build())
    assert [(c.index, c.vendor, c.model, c.memory_mib, c.cores) for c in cards] == [
        (0, "nvidia", "NVIDIA-A100-SXM4-40GB", 40536, None),
        (1, "nvidia", "NVIDIA-A100-SXM4-40GB", 40536, None),
    ]


def test_counted_cards_without_labels_have_no_facts() -> None:
    (card,) = cards_of(a_node().offering("amd.com/gpu", 1).build())
    assert (card.vendor, card.model, card.memory_mib) == ("amd", None, None)


def test_time_sliced_replicas_are_not_cards() -> None:
    shared = A100 | {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-SHARED", "nvidia.com/gpu.replicas": "4"}
    cards = cards_of(a_node().offering("nvidia.com/gpu", 8).labelled(shared).build())
    # 8 offered / 4 replicas = 2 GPUs.
    assert [card.model for card in cards] == ["NVIDIA-A100-SXM4-40GB"] * 2


def test_mig_devices_are_not_cards() -> None:
    mig = {"nvidia.com/gpu.product": "A100-PCIE-40GB-MIG-1g.5gb", "nvidia.com/mig.strategy": "single"}
    assert cards_of(a_node().offering("nvidia.com/gpu", 7).labelled(mig).build()) == ()
    assert cards_of(a_node().offering("nvidia.com/mig-1g.5gb", 7).build()) == ()


def test_two_vendors_share_one_numbering() -> None:
    node = a_node().offering("nvidia.com/gpu", 1).offering("amd.com/gpu", 2).build()
    assert [(card.index, card.vendor) for card in cards_of(node)] == [(0, "nvidia"), (1, "amd"), (2, "amd")]


@pytest.mark.parametrize("memory", ["", "many", "-1", "1e9", "9" * 40])
def test_unreadable_label_memory_is_unknown(memory: str) -> None:
    (card,) = cards_of(a_node().offering("nvidia.com/gpu", 1).labelled({"nvidia.com/gpu.memory": memory}).build())
    assert card.memory_mib is None


def test_large_gpu_count_is_bounded() -> None:
    assert len(cards_of(a_node().offering("nvidia.com/gpu", 10**9).build())) == MAX_CARDS
