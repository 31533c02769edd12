"""From a decision to a container and back: signed grants, allocation by the device plugin, and the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hetsched.agent.device_plugin.gpu_assignment import CardKeeper, ReceivedGrants
from hetsched.agent.device_plugin.settings import CardSettings
from hetsched.agent.device_plugin.slots import Card
from hetsched.contracts.messages.agent_message import AgentAnswer, AgentMessage, digest_of
from hetsched.contracts.messages.agent_report import AgentReport, KubeletState, MachineCard, MachineIsa
from hetsched.contracts.objects.allocation import CardGrant
from hetsched.inventory.models import Cluster
from hetsched.placement.actions import begin_binding
from hetsched.placement.models import DevicePluginAllocation, Pod, Reservation
from hetsched.placement.queries.invariants import check_invariants
from tests.builders import a_card, a_node, a_pod
from tests.situations import a_cluster, placing, recorded, submitted
from tests.unit.agent.kubelet import Kubelet, Refused, eventually

from .conftest import Api

CARDS = tuple(MachineCard(index, f"GPU-{index}", "NVIDIA L4", 23034, (), healthy=True) for index in range(3))


class Node:
    """Node n1: its kubelet, its agent's plugin, and the server that the agent reports to."""

    def __init__(self, door: Api, folder: Path) -> None:
        self.door = door
        self.sequence = 0
        self.kubelet = Kubelet(folder)
        self.kubelet.start()
        # The kubelet calls on a thread that does not share the test's transaction, so the agent does not request an
        # early report.
        self.source = ReceivedGrants("n1", lambda: None)
        settings = CardSettings(way="env", state=folder / "state", kubelet=folder)
        cards = tuple(Card(index, f"GPU-{index}", "nvidia", index, 0, True, 23034) for index in range(3))
        self.keeper = CardKeeper(settings, self.source, self._held, lambda: {"nvidia": cards})
        self.keeper.step()
        self.keeper._serving["nvidia.com/gpu"].plugin._patience_seconds = 0.2
        eventually(lambda: self.kubelet.devices)

    def _held(self, resource: str) -> set[str]:
        pods = self.kubelet.given.values()
        return {one for pod in pods for given in pod.values() for one in given.get(resource, ())}

    def report(self, *, assigns_gpus: bool = True) -> None:
        """Report the machine, and process the grants in the response."""
        self.sequence += 1
        isa = MachineIsa("x86", "x86-64-v3", level="x86-64-v3")
        report = AgentReport("n1", isa, (), (), CARDS, KubeletState(devices=self.kubelet.given))
        if assigns_gpus:
            report = self.keeper.with_assigned(report)
        message = AgentMessage(
            "n1", "a", "2026-11-21T10:00:00Z", self.sequence, digest_of(report), report, assigns_gpus=assigns_gpus
        )
        answer = self.door("POST", "agent/reports/", message, status=200).json()
        self.source.receive(msgspec.convert(answer, AgentAnswer))

    def close(self) -> None:
        self.keeper.close()
        self.kubelet.stop()


@pytest.fixture
def node(api: Callable[..., Api], settings: Any, tmp_path: Path) -> Iterator[Node]:
    settings.HETSCHED_AGENT_PAUSE_MILLIS = 0
    settings.SECRET_KEY_GIVEN = settings.HETSCHED_AGENT_KEYS_OVER_HTTP = True
    a_cluster(
        a_node("n1").having(gpus=tuple(a_card(index, "NVIDIA L4", 23034, uuid=f"GPU-{index}") for index in range(3))),
        name="lab",
    )
    made = Node(api("agent"), tmp_path)
    yield made
    made.close()


def placed(name: str, card: int) -> None:
    cluster = Cluster.objects.get()
    submitted(cluster, a_pod(name).gpu())
    recorded(cluster, placing(cluster, "n1", CardGrant(card, 1000, 23034, f"GPU-{card}")))
    Pod.objects.filter(name=name).update(uid=f"uid-{name}")
    begin_binding(cluster.pk, Pod.objects.filter(name=name).values_list("id", flat=True))


def reserved() -> dict[str, list[int]]:
    rows = Reservation.objects.filter(active=True).select_related("pod")
    return {row.pod.name: [card.index for card in row.allocation.gpus] for row in rows}


def admitted(node: Node, name: str, **more: Any) -> str:
    (answer,) = node.kubelet.admit(f"uid-{name}", 1, **more)
    return answer.envs["NVIDIA_VISIBLE_DEVICES"]


def test_container_gets_the_decided_gpus(node: Node) -> None:
    placed("p", 2)
    node.report()
    assert admitted(node, "p", insisting_on=("GPU-0",)) == "GPU-2"
    node.report()
    row = DevicePluginAllocation.objects.get()
    assert (row.advisory, row.cards, [card.index for card in row.granted]) == (False, (2,), [2])
    assert reserved() == {"p": [2]}


def test_pod_bound_by_another_scheduler_gets_no_grant(node: Node) -> None:
    placed("p", 2)
    node.report()
    admitted(node, "p")
    with pytest.raises(Refused):
        admitted(node, "stranger")


def test_indistinguishable_pods_are_recorded_as_admitted(node: Node) -> None:
    placed("p", 2)
    placed("q", 0)
    node.report()
    given = {name: admitted(node, name) for name in ("q", "p")}
    node.report()
    assert sorted(given.values()) == ["GPU-0", "GPU-2"]
    assert reserved() == {name: [int(card[4:])] for name, card in given.items()}
    assert set(DevicePluginAllocation.objects.values_list("problem", flat=True)) == {""}
    assert check_invariants() == []


def test_allocation_of_another_device_plugin_is_recorded(node: Node) -> None:
    placed("p", 2)
    node.kubelet.given = {"uid-p": {"main": {"nvidia.com/gpu": ("GPU-1",)}}}
    node.report(assigns_gpus=False)
    assert reserved() == {"p": [1]}
    assert DevicePluginAllocation.objects.get().advisory
    assert check_invariants() == []


def test_allocation_by_pci_address_is_recorded(api: Callable[..., Api], settings: Any) -> None:
    settings.HETSCHED_AGENT_PAUSE_MILLIS = 0
    gpus = tuple(a_card(index, "MI300X", 196592, uuid=f"GPU-{index}") for index in range(2))
    a_cluster(a_node("n1").having(gpus=gpus), name="lab")
    placed("p", 0)
    cards = tuple(
        MachineCard(index, f"GPU-{index}", "MI300X", 196592, (), pci_address=f"0000:0{index}:00.0", vendor="amd")
        for index in range(2)
    )
    kubelet = KubeletState(devices={"default/p": {"main": {"amd.com/gpu": ("0000:01:00.0",)}}})
    report = AgentReport("n1", MachineIsa("x86", "x86-64-v3", level="x86-64-v3"), (), (), cards, kubelet)
    message = AgentMessage("n1", "a", "2026-11-21T10:00:00Z", 1, digest_of(report), report)
    api("agent")("POST", "agent/reports/", message, status=200)
    assert [card.index for card in Reservation.objects.get(active=True).allocation.gpus] == [1]
    assert DevicePluginAllocation.objects.get().problem == ""
