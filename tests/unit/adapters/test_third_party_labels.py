"""Node facts without our agent.

Sources: labels of GPU feature discovery and AMD's labeller, registers of HAMi and Volcano, and Koordinator's
allocations.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hetsched.adapters.objects.documents import load_documents
from hetsched.adapters.objects.foreign_gpu_sharing import held_by_koordinator, registered_cards
from hetsched.adapters.objects.manifests import read_content
from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.cards import cards_of
from hetsched.contracts.objects.node_report import GpuCard
from tests.builders import a_node

LABELS = {
    load["node"]: load["labels"] for load in json.loads((Path(__file__).parent / "labels" / "gfd.json").read_text())
}
V100 = "GPU-a,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true"


def labelled(labels: dict[str, str], resource: str, count: int) -> tuple[GpuCard, ...]:
    return cards_of(a_node().offering(resource, count).labelled(labels).build())


def test_labels_of_gpu_feature_discovery() -> None:
    (ada,) = labelled(LABELS["linode-rtx4000-ada"], "nvidia.com/gpu", 1)
    assert (ada.model, ada.memory_mib) == ("NVIDIA-RTX-4000-Ada-Generation", 20475)
    (vgpu,) = labelled(LABELS["vgpu-a16-4q"], "nvidia.com/gpu", 1)
    assert (vgpu.model, vgpu.memory_mib) == ("NVIDIA-A16-4Q", 4096)
    # Seven instances of a split GPU are no whole GPU.
    assert labelled(LABELS["supermicro-a100-mig"], "nvidia.com/gpu", 7) == ()


def test_labels_of_amds_labeller() -> None:
    found = {"amd.com/gpu.product-name": "AMD_Instinct_MI210", "amd.com/gpu.vram": "64G"}
    (card,) = labelled(found, "amd.com/gpu", 1)
    # 64 GiB is rounded from 63.5 at least: 64 x 1024 - 512 = 65024; such a GPU shows 65520.
    assert (card.vendor, card.memory_mib) == ("amd", 65024)


@pytest.mark.parametrize(
    "text",
    [
        f"{V100}:GPU-b,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,1,false:",
        json.dumps([
            {"id": "GPU-b", "index": 1, "count": 10, "devmem": 32768, "devcore": 100,
             "type": "NVIDIA-Tesla V100-PCIE-32GB", "numa": 1, "health": False},
            {"id": "GPU-a", "index": 0, "count": 10, "devmem": 32768, "devcore": 100,
             "type": "NVIDIA-Tesla V100-PCIE-32GB", "numa": 0, "health": True},
        ]),
    ],
)  # fmt: skip
def test_registered_cards_count_and_not_their_slots(text: str) -> None:
    problems: list[str] = []
    first, second = registered_cards({"hami.io/node-nvidia-register": text}, problems) or ()
    assert problems == []
    assert (first.index, first.uuid, first.memory_mib, first.healthy) == (0, "GPU-a", 32768, True)
    assert (second.index, second.uuid, second.numa_zone, second.healthy) == (1, "GPU-b", "node-1", False)
    node = {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n1", "annotations": {"hami.io/node-nvidia-register": text}},
        "status": {"allocatable": {"cpu": "8", "nvidia.com/gpu": "20"}},
    }  # fmt: skip
    (report,) = read(node).nodes
    assert [card.uuid for card in cards_of(report)] == ["GPU-a"]  # the other one is not healthy


def test_volcanos_older_form() -> None:
    (card,) = registered_cards({"volcano.sh/node-vgpu-register": "GPU-a,10,16384,NVIDIA-Tesla T4,true:"}, []) or ()
    assert (card.uuid, card.memory_mib, card.model) == ("GPU-a", 16384, "NVIDIA-Tesla T4")


@pytest.mark.parametrize(
    "text", ["GPU-a,10", "[{", "GPU-a,x,y,z,w,v,u", '[{"index": 999}]', "[" * 9999, f"{V100}:" * 300]
)
def test_unreadable_label_is_unknown_and_reported(text: str) -> None:
    problems: list[str] = []
    assert registered_cards({"hami.io/node-nvidia-register": text}, problems) is None
    assert problems[0].startswith("RegisterUnreadable: hami.io/node-nvidia-register")


def test_missing_register_gives_no_facts() -> None:
    problems: list[str] = []
    assert registered_cards({"hami.io/node-nvidia-register": ""}, problems) is None
    assert registered_cards({}, problems) is None
    assert problems == []


HELD = {
    "scheduling.koordinator.sh/resource-status": '{"cpuset":"2-3","numaNodeResources":[{"node":0}]}',
    "scheduling.koordinator.sh/device-allocated": json.dumps(
        {"gpu": [{"minor": 1, "resources": {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"}}]}
    ),
}


def test_koordinator_allocations_are_charged() -> None:
    allocation = held_by_koordinator(HELD, {"cpu": 2000, "koordinator.sh/gpu-core": 50})
    assert allocation is not None
    assert parse_cpuset(allocation.zones[0].cpus or "") == {2, 3}
    # Half of the cores is 500 thousandths; 8 Gi are 8192 MiB.
    assert [(grant.index, grant.milli, grant.memory_mib) for grant in allocation.gpus] == [(1, 500, 8192)]


def test_annotation_does_not_exceed_the_request() -> None:
    assert held_by_koordinator(HELD, {"cpu": 500}) is None  # two CPUs and a GPU, for half a CPU
    assert held_by_koordinator({}, {"cpu": 2000}) is None
    for text in ("{", '{"cpuset": "3-1"}', "[]"):
        with pytest.raises(InputError):
            held_by_koordinator({"scheduling.koordinator.sh/resource-status": text}, {"cpu": 2000})


def test_running_koordinator_pod_keeps_its_gpu() -> None:
    pod = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", "annotations": HELD},
        "spec": {"nodeName": "n1", "schedulerName": "koord-scheduler", "containers": [{"name": "m", "image": "x",
                 "resources": {"requests": {"cpu": "2", "koordinator.sh/gpu-core": "50"}}}]},
        "status": {"phase": "Running"},
    }  # fmt: skip
    (running,) = read({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}, pod).running
    assert running.allocation is not None
    assert [grant.index for grant in running.allocation.gpus] == [1]


def read(*objects: dict[str, Any]) -> Any:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    return read_content(load_documents(text.encode(), name="test"), workload=False)
