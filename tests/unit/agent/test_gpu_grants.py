"""From the control plane's response to a container: signed grants only, requested on demand, reported by GPU."""

from __future__ import annotations

import json
import os
import threading
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from hetsched.agent.device_plugin.gpu_assignment import CardKeeper, ReceivedGrants, card_keeper
from hetsched.agent.device_plugin.settings import CardSettings, card_settings, resolve_way
from hetsched.agent.device_plugin.slots import Card, cards_from
from hetsched.agent.gpus.probe import read_cards
from hetsched.agent.tree import Tree
from hetsched.contracts.errors import InputError
from hetsched.contracts.messages.agent_message import AgentAnswer, NodeAllocation
from hetsched.contracts.messages.agent_report import AgentReport, KubeletState, MachineIsa
from hetsched.contracts.messages.signatures import node_key, sign
from tests.unit.agent.cards import document, put
from tests.unit.agent.kubelet import Kubelet, Refused, eventually

KEY = node_key(b"secret", "fleet", "n1")
OTHER_KEY = node_key(b"secret", "fleet", "n2")
CARDS = tuple(Card(index, f"GPU-{index}", "nvidia", index, 0, True, 40960) for index in range(2))


def allocation(uid: str, card: int, *, node: str = "n1", key: bytes = KEY, signed_for: str = "") -> NodeAllocation:
    gpu = {"index": card, "milli": 1000, "memoryMiB": 40960, "uuid": f"GPU-{card}"}
    granted = {"v": 1, "uid": signed_for or uid, "node": node, "epoch": 1, "gpus": [gpu]}
    return NodeAllocation(uid, json.dumps({**granted, "sig": sign(granted, key)}))


def an_answer(*allocations: NodeAllocation) -> AgentAnswer:
    return AgentAnswer("fleet", "n1", 1, urlsafe_b64encode(KEY).decode(), 30, list(allocations))


class ControlPlane:
    """Respond to an early report with the grants at that time."""

    def __init__(self) -> None:
        self.granted: list[NodeAllocation] = []
        self.source = ReceivedGrants("n1", self.send_now)
        self.requested_sends = 0

    def send_now(self) -> None:
        self.requested_sends += 1
        threading.Thread(target=lambda: self.source.receive(an_answer(*self.granted))).start()


@pytest.fixture
def plane() -> ControlPlane:
    return ControlPlane()


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    made = Kubelet(tmp_path)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def keeper(kubelet: Kubelet, plane: ControlPlane) -> Iterator[CardKeeper]:
    def held(resource: str) -> set[str]:
        return {one for pod in kubelet.given.values() for given in pod.values() for one in given[resource]}

    settings = CardSettings(way="env", state=kubelet.folder / "state", kubelet=kubelet.folder)
    made = CardKeeper(settings, plane.source, held, lambda: {"nvidia": CARDS})
    made.step()
    eventually(lambda: kubelet.devices)
    yield made
    made.close()


def test_kubelet_allocation_requests_a_grant(keeper: CardKeeper, kubelet: Kubelet, plane: ControlPlane) -> None:
    plane.granted = [allocation("a", 1)]
    (answer,) = kubelet.admit("a", 1)
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
    assert plane.requested_sends >= 1


@pytest.mark.parametrize(
    "granted",
    [
        allocation("a", 1, key=OTHER_KEY),
        allocation("a", 1, signed_for="b"),
        allocation("a", 1, node="n2"),
        NodeAllocation("a", '{"v":1,"uid":"a","node":"n1","epoch":1,"gpus":[{"index":1,"milli":1000,"memoryMiB":0}]}'),
    ],
    ids=["forged", "of another pod", "of another node", "unsigned"],
)
def test_grant_unsigned_for_this_pod_allocates_nothing(
    granted: NodeAllocation, kubelet: Kubelet, plane: ControlPlane, keeper: CardKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper._serving["nvidia.com/gpu"].plugin, "_patience_seconds", 0.2)
    plane.granted = [granted]
    with pytest.raises(Refused):
        kubelet.admit("a", 1)
    assert [problem.code[:10] for problem in keeper.problems] == ["Allocation"]


def test_deleted_pod_leaves_no_grant(plane: ControlPlane) -> None:
    plane.source.receive(an_answer(allocation("a", 1), allocation("b", 0)))
    assert [grant.uid for grant in plane.source.grants()] == ["a", "b"]
    plane.source.receive(an_answer(allocation("b", 0)))
    assert [grant.uid for grant in plane.source.grants()] == ["b"]


def test_report_names_gpus_instead_of_kubelet_devices(
    keeper: CardKeeper, kubelet: Kubelet, plane: ControlPlane
) -> None:
    plane.granted = [allocation("a", 1)]
    kubelet.admit("a", 1, insisting_on=("GPU-0",))
    assert kubelet.given["a"]["c0"]["nvidia.com/gpu"] == ("GPU-0",)
    given = {"a": {"c0": {"nvidia.com/gpu": ("GPU-0",), "rdma/hca": ("mlx5_0",)}}}
    report = keeper.with_assigned(
        AgentReport("n1", MachineIsa(None, None), None, None, None, KubeletState(devices=given))
    )
    assert report.kubelet is not None
    assert report.kubelet.devices == {"a": {"c0": {"nvidia.com/gpu": ("GPU-1",), "rdma/hca": ("mlx5_0",)}}}


def test_refresh_without_an_answer_times_out(plane: ControlPlane) -> None:
    source = ReceivedGrants("n1", lambda: None)
    source.refresh(0.05)
    assert source.grants() == []


def test_keeper_receives_the_answers_of_the_sender(tmp_path: Path) -> None:
    class Sender:
        def add_listener(self, listener: object) -> None:
            self.listener = listener

        def send_now(self) -> None:
            self.listener(an_answer(allocation("a", 1)))  # type: ignore[operator]

    keeper = card_keeper("n1", Sender(), tmp_path, {"HETSCHED_AGENT_CARD_SLOTS": "4"})
    keeper._source.refresh(1)
    assert [grant.uid for grant in keeper._source.grants()] == ["a"]


# -- assignment and injection
# --------------------------------------------------------------------------------------------


def test_split_gpus_and_gpus_without_a_driver_are_not_allocated(tmp_path: Path) -> None:
    split = read_cards(Tree(tmp_path), document("telegraf-a100-sxm4-v12"))
    whole = read_cards(Tree(tmp_path), document("qx-h100"))
    assert split is not None
    assert whole is not None
    assert cards_from(split, {}, "nvidia") == ()
    whole[1].troubles.append("it is ill")
    whole[2].memory_mib = None
    found = cards_from(whole, {0: 0, 4: 1}, "nvidia")
    assert [(card.minor, card.zone, card.healthy) for card in found] == [
        (0, 0, True), (1, None, False), (2, None, False), (3, None, True),
        (4, 1, True), (5, None, True), (6, None, True), (7, None, True),
    ]  # fmt: skip
    assert cards_from(whole, {}, "amd") == ()


def test_cdi_specification_selects_the_injection_mode(tmp_path: Path) -> None:
    settings = card_settings({}, tmp_path)
    assert resolve_way(settings, Tree(tmp_path)) == "env"
    put(tmp_path, {"var/run/cdi/nvidia.yaml": "cdiVersion: 0.5.0"})
    assert resolve_way(settings, Tree(tmp_path)) == "cdi"
    assert resolve_way(card_settings({"HETSCHED_AGENT_CARD_WAY": "nodes"}, tmp_path), Tree(tmp_path)) == "nodes"


@pytest.mark.parametrize(
    "environment",
    [{"HETSCHED_AGENT_CARD_SLOTS": value} for value in ("0", "101", "many", "-1")] + [{"HETSCHED_AGENT_CARD_WAY": "x"}],
)
def test_wrong_settings_are_refused(environment: dict[str, str]) -> None:
    with pytest.raises(InputError) as caught:
        card_settings(environment, Path(os.curdir))
    assert caught.value.code == "SettingInvalid"
