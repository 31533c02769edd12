"""The device plugin with a kubelet that chooses devices and does not name the pod."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hetsched.agent.device_plugin.assignments import AssignmentRecord
from hetsched.agent.device_plugin.plugin import CardPlugin
from hetsched.agent.device_plugin.pod_selection import PodGrant, choose
from hetsched.agent.device_plugin.server import PluginServer
from hetsched.agent.device_plugin.slots import Card, slots_of
from hetsched.agent.rpc import device_plugin_pb2 as api
from hetsched.contracts.objects.allocation import CardGrant
from tests.unit.agent.kubelet import Kubelet, Refused, eventually

MEMORY_MIB = 40960
Answer = api.ContainerAllocateResponse


def a_card(index: int, *, healthy: bool = True, vendor: str = "nvidia") -> Card:
    return Card(index, f"GPU-{index}", vendor, index, index // 2, healthy, MEMORY_MIB)


def grant(uid: str, *cards: int, milli: int = 1000) -> PodGrant:
    memory = MEMORY_MIB * milli // 1000
    return PodGrant(uid, tuple(CardGrant(card, milli, memory, f"GPU-{card}") for card in cards))


class Source:
    """Grants of the control plane; `coming` grants are returned only after a request."""

    def __init__(self, *known: PodGrant) -> None:
        self.known = list(known)
        self.coming: list[PodGrant] = []
        self.asked = 0

    def grants(self) -> Sequence[PodGrant]:
        return self.known

    def refresh(self, seconds: float) -> None:
        self.asked += 1
        self.known, self.coming = self.known + self.coming, []


class Scene:
    """A kubelet, the plugin of a machine with four GPUs, and the control plane's grants."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.kubelet = Kubelet(folder)
        self.source = Source()
        self.options = options
        self.state = folder / "state" / "cards.json"
        self.now = 1000.0
        self.kubelet.start()
        self.start()

    def start(self, cards: Sequence[Card] | None = None) -> None:
        more = {"patience_seconds": 0.3, **self.options}
        handed = AssignmentRecord(self.state, clock=lambda: self.now)
        self.plugin = CardPlugin(
            str(more.pop("resource", "nvidia.com/gpu")),
            self.source,
            handed,
            in_use=self._in_use,
            **more,  # type: ignore[arg-type]
        )
        self.plugin.set_cards([a_card(index) for index in range(4)] if cards is None else cards)
        self.serving = PluginServer(self.plugin, self.kubelet.folder)
        assert self.serving.tick(), self.serving.problem
        eventually(lambda: self.kubelet.devices)

    def _in_use(self) -> set[str] | None:
        held = self.kubelet.held()
        if held is None:
            return None
        return {one for pod in held.values() for given in pod.values() for ids in given.values() for one in ids}

    def actual(self) -> dict[str, list[str]]:
        return {
            uid: sorted({card for given in pod.values() for ids in given.values() for card in ids})
            for uid, pod in self.plugin.actual(self.kubelet.given).items()
        }

    def close(self) -> None:
        self.serving.stop()
        self.kubelet.stop()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


def visible(answer: Answer) -> str:
    return answer.envs["NVIDIA_VISIBLE_DEVICES"]


def test_plugin_registers_and_lists_its_gpus(scene: Scene) -> None:
    (request,) = scene.kubelet.registered
    assert (request.version, request.resource_name) == ("v1beta1", "nvidia.com/gpu")
    assert request.options.get_preferred_allocation_available
    options = scene.kubelet.ask("GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions)
    assert options == request.options
    assert {name: (device.health, device.topology.nodes[0].ID) for name, device in scene.kubelet.devices.items()} == {
        "GPU-0": ("Healthy", 0), "GPU-1": ("Healthy", 0), "GPU-2": ("Healthy", 1), "GPU-3": ("Healthy", 1)
    }  # fmt: skip


def test_container_gets_the_granted_gpu_and_the_kubelet_counts_it(scene: Scene) -> None:
    scene.source.known = [grant("a", 2)]
    (answer,) = scene.kubelet.admit("a", 1)
    assert visible(answer) == "GPU-2"
    assert answer.annotations["hetsched.io/cards"] == "GPU-2:1000"
    assert scene.kubelet.given["a"]["c0"] == {"nvidia.com/gpu": ("GPU-2",)}


def test_grant_overrides_the_kubelets_choice(scene: Scene) -> None:
    scene.source.known = [grant("a", 2)]
    (answer,) = scene.kubelet.admit("a", 1, insisting_on=("GPU-0",))
    assert visible(answer) == "GPU-2"
    assert scene.actual() == {"a": ["GPU-2"]}
    # The next pod is granted the GPU whose slot is gone, and gets it.
    scene.source.known.append(grant("b", 0))
    (answer,) = scene.kubelet.admit("b", 1)
    assert visible(answer) == "GPU-0"
    assert scene.actual() == {"a": ["GPU-2"], "b": ["GPU-0"]}


def test_concurrent_equal_pods_share_no_gpu(scene: Scene) -> None:
    scene.source.known = [grant("a", 3), grant("b", 1)]
    first, second = scene.kubelet.admit("b", 1), scene.kubelet.admit("a", 1)
    # The kubelet does not say which one it admits first: the GPUs are the granted ones, and the assignment is reported.
    assert {visible(first[0]), visible(second[0])} == {"GPU-1", "GPU-3"}
    assert scene.actual() == {"b": [visible(first[0])], "a": [visible(second[0])]}


def test_grant_after_an_allocation_allocates_nothing_twice(scene: Scene) -> None:
    scene.source.known = [grant("a", 3), grant("b", 1)]
    (first,) = scene.kubelet.admit("b", 1)
    assert visible(first) == "GPU-3"  # a's, which came first
    # The control plane reads that back, and grants each its current or a remaining GPU.
    scene.source.known = [grant("a", 1), grant("b", 3)]
    assert visible(scene.kubelet.admit("a", 1)[0]) == "GPU-1"
    with pytest.raises(Refused):
        scene.kubelet.admit("stranger", 1)


def test_gpu_in_use_is_not_allocated(scene: Scene) -> None:
    scene.source.known = [grant("a", 3)]
    scene.kubelet.admit("a", 1)
    scene.source.known = [grant("b", 3)]  # the control plane no longer lists pod a, whose container still runs
    with pytest.raises(Refused):
        scene.kubelet.admit("b", 1)
    scene.kubelet.end("a")
    scene.now += 11
    assert visible(scene.kubelet.admit("b", 1)[0]) == "GPU-3"


def test_gpu_of_a_misplaced_pod_is_not_allocated_again(scene: Scene) -> None:
    scene.source.known = [grant("a", 3)]
    scene.kubelet.admit("a", 1)
    scene.source.known = [grant("a", 2), grant("b", 3)]
    # Pod a stays on GPU 3 regardless of its grant, so b gets a's granted GPU; both assignments are read back.
    assert visible(scene.kubelet.admit("b", 1)[0]) == "GPU-2"
    assert scene.actual() == {"a": ["GPU-3"], "b": ["GPU-2"]}


@pytest.mark.parametrize("seed", range(20))
def test_no_gpu_is_ever_overallocated(seed: int) -> None:
    """Pods start, end and get new grants in any order; the kubelet names any free slots."""
    chance = random.Random(seed)
    slots_each = chance.choice([1, 4])
    cards = {card.id: card for card in (a_card(index) for index in range(4))}
    slots = [slot.id for slot in slots_of(list(cards.values()), slots_each)]
    grants: dict[str, PodGrant] = {}
    now = [0.0]
    handed = AssignmentRecord(None, clock=lambda: now[0])
    held: dict[str, list[str]] = {}
    for step in range(60):
        now[0] += 20
        uid = f"p{chance.randrange(8)}"
        match chance.randrange(4):
            case 0 | 1:  # grants of the ledger add up, and may change at any time
                milli = chance.choice([1000, 1000, 500, 250]) if slots_each > 1 else 1000
                count = chance.choice([1, 1, 2]) if milli == 1000 else 1
                used = Counter(
                    {
                        int(share.uuid[4:]): 0 if other == uid else share.milli
                        for other, one in grants.items()
                        for share in one.cards
                        if share.uuid
                    }
                )
                room = [index for index in range(4) if used[index] + milli <= 1000]
                if len(room) >= count:
                    grants[uid] = grant(uid, *chance.sample(room, count), milli=milli)
            case 2:
                grants.pop(uid, None)
                if held.pop(uid, None) is not None:
                    handed.settle({slot for some in held.values() for slot in some}, grants)
            case _:
                free = [slot for slot in slots if all(slot not in some for some in held.values())]
                count = chance.choice([1, 1, 2])
                if len(free) < count or uid in held:
                    continue
                named = chance.sample(free, count)
                chosen = choose(named, list(grants.values()), handed.entries, cards)
                if chosen is not None:
                    pairs = list(zip(named, chosen.cards, strict=True))
                    handed.add(
                        chosen.uid,
                        {slot: card.id for slot, (card, _) in pairs},
                        {slot: share.milli for slot, (_, share) in pairs},
                    )
                    held[uid] = named
        given: Counter[str] = Counter()
        for entry in handed.entries:
            assert not set(entry.cards).isdisjoint({slot for some in held.values() for slot in some})
            for slot, card in entry.cards.items():
                given[card] += entry.millis[slot]
        assert max(given.values(), default=0) <= 1000, step


def test_pods_of_different_shapes_are_distinguished(scene: Scene) -> None:
    scene.source.known = [grant("a", 0), grant("b", 1, 3)]
    assert visible(scene.kubelet.admit("b", 2)[0]) == "GPU-1,GPU-3"
    assert visible(scene.kubelet.admit("a", 1)[0]) == "GPU-0"


def test_containers_divide_the_grant_of_their_pod(scene: Scene) -> None:
    scene.source.known = [grant("a", 3, 0, 1), grant("b", 2)]
    assert [visible(answer) for answer in scene.kubelet.admit("a", 2, 1)] == ["GPU-3,GPU-0", "GPU-1"]
    assert visible(scene.kubelet.admit("b", 1)[0]) == "GPU-2"


def test_init_container_releases_its_gpu(scene: Scene) -> None:
    scene.source.known = [grant("a", 3), grant("b", 1)]
    assert [visible(answer) for answer in scene.kubelet.admit("a", 1, init=1)] == ["GPU-3", "GPU-3"]
    assert visible(scene.kubelet.admit("b", 1)[0]) == "GPU-1"


def test_pod_without_a_grant_is_rejected(scene: Scene) -> None:
    with pytest.raises(Refused, match="grant for 1 nvidia"):
        scene.kubelet.admit("stranger", 1)
    assert scene.source.asked > 0
    assert scene.actual() == {}


def test_grant_is_used_by_one_pod(scene: Scene) -> None:
    scene.source.known = [grant("a", 3)]
    scene.kubelet.admit("a", 1)
    with pytest.raises(Refused):
        scene.kubelet.admit("stranger", 1)


def test_request_above_the_grant_is_rejected(scene: Scene) -> None:
    scene.source.known = [grant("a", 3)]
    with pytest.raises(Refused):
        scene.kubelet.admit("a", 2)


def test_allocation_waits_for_a_grant_in_flight(scene: Scene) -> None:
    scene.source.coming = [grant("a", 3)]
    assert visible(scene.kubelet.admit("a", 1)[0]) == "GPU-3"


def test_unhealthy_gpu_is_listed_and_never_allocated(scene: Scene) -> None:
    scene.source.known = [grant("a", 2)]
    scene.plugin.set_cards([a_card(index, healthy=index != 2) for index in range(4)])
    eventually(lambda: scene.kubelet.devices["GPU-2"].health == "Unhealthy")
    with pytest.raises(Refused):
        scene.kubelet.admit("a", 1)
    scene.plugin.set_cards([a_card(index) for index in range(4)])
    eventually(lambda: scene.kubelet.devices["GPU-2"].health == "Healthy")
    assert visible(scene.kubelet.admit("a", 1)[0]) == "GPU-2"


def test_plugin_registers_again_after_a_kubelet_restart(scene: Scene) -> None:
    scene.source.known = [grant("a", 2), grant("b", 0)]
    scene.kubelet.admit("a", 1)
    scene.kubelet.restart()
    assert scene.serving.tick()
    assert len(scene.kubelet.registered) == 2
    eventually(lambda: len(scene.kubelet.devices) == 4)
    assert visible(scene.kubelet.admit("b", 1)[0]) == "GPU-0"
    assert scene.serving.tick()
    assert len(scene.kubelet.registered) == 2


def test_plugin_waits_for_the_kubelet(scene: Scene) -> None:
    scene.kubelet.stop()
    assert not scene.serving.tick()
    assert "does not exist" in scene.serving.problem
    assert list(scene.kubelet.folder.glob("hetsched-*")) == []
    scene.kubelet.start()
    assert scene.serving.tick()
    eventually(lambda: len(scene.kubelet.devices) == 4)


def test_removed_socket_is_created_again(scene: Scene) -> None:
    for socket in scene.kubelet.folder.glob("hetsched-*"):
        socket.unlink()
    assert scene.serving.tick()
    assert len(scene.kubelet.registered) == 2


def test_restarted_agent_knows_its_allocations(scene: Scene) -> None:
    scene.source.known = [grant("a", 2), grant("b", 0)]
    scene.kubelet.admit("a", 1, insisting_on=("GPU-0",))
    scene.serving.stop()
    scene.start()
    assert scene.actual() == {"a": ["GPU-2"]}
    assert visible(scene.kubelet.admit("b", 1)[0]) == "GPU-0"


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"v": 2, "entries": []}', b'{"v": 1, "entries": [{"uid": 3}]}', b'"\xff"']
)
def test_lost_record_is_reported_as_uncertain(scene: Scene, data: bytes) -> None:
    scene.source.known = [grant("a", 2)]
    scene.kubelet.admit("a", 1)
    scene.serving.stop()
    scene.state.write_bytes(data)
    scene.start()
    assert scene.actual() == {"a": ["unrecorded:GPU-2"]}


def test_kubelet_without_checkpoint_gets_the_same_gpus(scene: Scene) -> None:
    scene.source.known = [grant("a", 2)]
    scene.kubelet.admit("a", 1)
    scene.kubelet.end("a")
    scene.now += 11
    assert visible(scene.kubelet.admit("a", 1)[0]) == "GPU-2"


def test_gpus_of_an_ended_pod_are_free_for_the_next_one(scene: Scene) -> None:
    scene.source.known = [grant("a", 2)]
    scene.kubelet.admit("a", 1)
    scene.kubelet.end("a")
    scene.now += 11
    scene.source.known = [grant("b", 2)]
    assert visible(scene.kubelet.admit("b", 1)[0]) == "GPU-2"
    assert scene.actual() == {"b": ["GPU-2"]}


def test_grants_decide_without_podresources(scene: Scene) -> None:
    scene.kubelet.shows = False
    scene.source.known = [grant("a", 2), grant("b", 1)]
    assert {visible(scene.kubelet.admit(uid, 1)[0]) for uid in ("a", "b")} == {"GPU-1", "GPU-2"}
    with pytest.raises(Refused):
        scene.kubelet.admit("stranger", 1)


# -- shares, and injection modes
# -----------------------------------------------------------------------------------------


def test_shares_of_one_card_are_slots_with_limits(tmp_path: Path) -> None:
    scene = Scene(tmp_path, slots=4, slicing_directory="/opt/vgpu")
    try:
        assert len(scene.kubelet.devices) == 16
        scene.source.known = [grant("a", 1, milli=500), grant("b", 1, milli=250)]
        first, second = scene.kubelet.admit("a", 1)[0], scene.kubelet.admit("b", 1)[0]
        assert visible(first) == visible(second) == "GPU-1"
        # 500 and 250 thousandths of 40960 MiB, and of the cores in percent.
        limits = {
            (answer.envs["CUDA_DEVICE_MEMORY_LIMIT_0"], answer.envs["CUDA_DEVICE_SM_LIMIT"])
            for answer in (first, second)
        }
        assert limits == {("20480m", "50"), ("10240m", "25")}
        assert [(mount.container_path, mount.host_path) for mount in first.mounts] == [
            ("/usr/local/vgpu/libvgpu.so", "/opt/vgpu/libvgpu.so"), ("/etc/ld.so.preload", "/opt/vgpu/ld.so.preload")
        ]  # fmt: skip
        assert all(
            slot.startswith("GPU-1::") for pod in scene.kubelet.given.values() for slot in pod["c0"]["nvidia.com/gpu"]
        )
        assert scene.actual() == {"a": ["GPU-1"], "b": ["GPU-1"]}
    finally:
        scene.close()


def test_whole_gpu_is_not_limited(tmp_path: Path) -> None:
    scene = Scene(tmp_path, slicing_directory="/opt/vgpu")
    try:
        scene.source.known = [grant("a", 1)]
        (answer,) = scene.kubelet.admit("a", 1)
        assert set(answer.envs) == {"NVIDIA_VISIBLE_DEVICES"}
        assert list(answer.mounts) == []
    finally:
        scene.close()


def test_cards_by_cdi(tmp_path: Path) -> None:
    scene = Scene(tmp_path, way="cdi")
    try:
        scene.source.known = [grant("a", 1, 3)]
        (answer,) = scene.kubelet.admit("a", 2)
        assert [device.name for device in answer.cdi_devices] == ["nvidia.com/gpu=GPU-1", "nvidia.com/gpu=GPU-3"]
        assert visible(answer) == "void"
    finally:
        scene.close()


def test_cards_as_device_nodes(tmp_path: Path) -> None:
    scene = Scene(tmp_path, way="nodes")
    try:
        scene.source.known = [grant("a", 3)]
        (answer,) = scene.kubelet.admit("a", 1)
        assert [device.host_path for device in answer.devices] == [
            "/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"
        ]  # fmt: skip
    finally:
        scene.close()


def test_amds_cards_are_device_nodes(tmp_path: Path) -> None:
    scene = Scene(tmp_path, resource="amd.com/gpu")
    try:
        scene.plugin.set_cards([Card(0, "GPU-0", "amd", 128), Card(1, "GPU-1", "amd", 129)])
        eventually(lambda: len(scene.kubelet.devices) == 2)
        scene.source.known = [grant("a", 1)]
        (answer,) = scene.kubelet.admit("a", 1)
        assert [device.host_path for device in answer.devices] == ["/dev/kfd", "/dev/dri/renderD129"]
    finally:
        scene.close()
