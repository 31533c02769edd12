"""In-place resizes, label changes and device taints while pods arrive and processes are killed, on a real API server.

The history of the API server is checked: no node is overcommitted by a binding, including resized pods, no device is
given twice or while it is tainted, and required affinity, anti-affinity and spread hold with the current labels. At the
end of each round, the scheduler charges on each node what Kubernetes charges, including refused and deferred resizes.
HETSCHED_TEST_CHANGE_ROUNDS sets the number of rounds, each with one kill, HETSCHED_TEST_SEED the changes.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.objects import requests
from hetsched.adapters.objects.fields import FieldView
from hetsched.engine.cluster.devices import search as device_search
from hetsched.inventory.models import Cluster, Node
from hetsched.placement import in_place
from hetsched.scheduling import binding_cycle
from hetsched.scheduling.informer import Informer
from hetsched.scheduling.informer_host import InformerHost
from hetsched.scheduling.leases import following
from tests.fault_table import Faults
from tests.kube import change_stream
from tests.kube.change_stream import ARGUMENTS, CAPACITY, CHANGES, NAMES, REFUSALS, ZONES, ChangeStream
from tests.kube.control_plane import ControlPlane
from tests.kube.live import PACE, listed, node_of, scheduling, start_watch
from tests.kube.pod_history import Recorder
from tests.kube.resizing_kubelet import ResizingKubelet
from tests.kube.scene import empty_cluster, eventually
from tests.system.plane import Plane
from tests.system.processes import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.timeout(7200)]
ROUNDS = int(os.environ.get("HETSCHED_TEST_CHANGE_ROUNDS", "1"))
SEED = int(os.environ.get("HETSCHED_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
VICTIMS = (("watch",), ("worker",), ("watch", "worker"))
PATIENCE_SECONDS = 120
Pods = dict[str, str]  # node by name


@pytest.fixture(scope="module")
def tainting() -> Iterator[ControlPlane]:
    """Yield an API server that serves DeviceTaintRules."""
    with ControlPlane(*ARGUMENTS) as running:
        yield running


@pytest.fixture
def devices_api(tainting: ControlPlane) -> Iterator[Api]:
    api = empty_cluster(tainting)
    change_stream.create_cluster(api)
    yield api
    change_stream.delete_device_objects(api)


@pytest.mark.needs("postgres", "redis-server")
def test_changes_of_running_pods_nodes_and_devices_under_kills(
    tainting: ControlPlane, devices_api: Api, faults: Faults, figures: dict[str, object]
) -> None:
    draw = random.Random(SEED)
    with (
        scheduling(tainting, **PACE) as ours,
        ResizingKubelet(devices_api, CAPACITY, REFUSALS) as kubelet,
        Recorder(devices_api, CAPACITY, ZONES) as recorder,
    ):
        rounds = Rounds(ours, devices_api, recorder, draw, faults)
        for number in range(ROUNDS):
            rounds.run(VICTIMS[number % len(VICTIMS)], f"round {number} of seed {SEED}")
            faults.size = f"{number + 1} rounds with a kill, {rounds.bindings} bindings"
        figures["resizes, labels and taints under kill -9"] = (
            f"{ROUNDS} kills, {rounds.bindings} bindings, changes {rounds.stream.done}, "
            f"resizes {dict(kubelet.resizes)}, {len(kubelet.refused)} pods not admitted"
        )


class Rounds:
    """Rounds of changes with one kill each, and the faults found in them."""

    def __init__(self, ours: Plane, api: Api, recorder: Recorder, draw: random.Random, faults: Faults) -> None:
        assert ours.driver
        self.bindings = 0
        self._faults = faults
        self._ours, self._api, self._recorder, self._draw, self._ask = ours, api, recorder, draw, ours.driver
        self._processes = dict(zip(("watch", "worker", "beat"), ours.running, strict=True))
        self.stream = ChangeStream(
            api, recorder, draw, self._awaits("stored_taints"), self._awaits("stored_unlabelled")
        )

    def run(self, victims: tuple[str, ...], where: str) -> None:
        self.stream.begin_round()
        kill_at = self._draw.randrange(CHANGES // 4, CHANGES)
        for number in range(CHANGES):
            self.stream.change()
            if number == kill_at:
                self._kill(victims)
                self._faults.add("freed early", self._released_early())
            time.sleep(self._draw.uniform(0, 0.2))
        while self.stream.create():
            pass
        self.stream.allow_all()
        self._compare_charges()
        self._settle()
        doubled, wrong = self._recorder.checked()
        self._faults.add("bound twice", [*doubled, *wrong])
        self._faults.add("bound twice", self._ask("violations"))
        self.bindings += self._recorder.history.bindings()
        self._delete_all()
        self._faults.assert_none(where)

    def _compare_charges(self) -> None:
        """Wait until the scheduler charges the same CPUs as Kubernetes; note the nodes where it does not."""
        until = time.monotonic() + PATIENCE_SECONDS
        while (wrong := charge_differences(self._charges(), self._recorder.charges())) and time.monotonic() < until:
            time.sleep(0.5)
        self._faults.add("leaked", [text for text, difference in wrong.items() if difference > 0])
        self._faults.add("freed early", [text for text, difference in wrong.items() if difference < 0])

    def _settle(self) -> None:
        """Wait until every pod has a node and a reservation; note the pods and reservations that do not."""
        until = time.monotonic() + PATIENCE_SECONDS
        pending: list[str] = ["all"]
        while pending and time.monotonic() < until:
            self.stream.make_room()
            time.sleep(0.5)
            pending = [name for name, node in self._pods().items() if not node]
        self._faults.add("lost", pending)
        while time.monotonic() < until and self._held() != self._pods():
            time.sleep(0.2)
        self._faults.compare(list(self._pods().items()), list(self._held().items()))

    def _delete_all(self) -> None:
        self.stream.delete_all()
        seconds, tails = PATIENCE_SECONDS, self._ours.log_tails
        wait_until(lambda: not self._pods(all_phases=True), what=tails, seconds=seconds)
        wait_until(self._recorder.saw_all_deletions, what=tails, seconds=seconds)
        self.stream.delete_claims()
        until = time.monotonic() + PATIENCE_SECONDS
        while self._held() and time.monotonic() < until:
            time.sleep(0.2)
        self._faults.add("leaked", list(self._held()))
        self._recorder.forget()

    def _kill(self, victims: tuple[str, ...]) -> None:
        for name in victims:
            self._processes[name].kill_group()
        for name in victims:
            self._processes[name] = start_watch(self._ours) if name == "watch" else self._ours.start_worker()

    def _released_early(self) -> list[str]:
        """Return bound pods without a reservation that exist before and after the reservations were read."""
        before, held, after = self._pods(), self._held(), self._pods()
        return [name for name, node in before.items() if node and name in after and name not in held]

    def _pods(self, *, all_phases: bool = False) -> Pods:
        """Return the pods that have not ended and are not being deleted, with their nodes."""
        pods = listed(self._api)[0]
        if not all_phases:
            pods = [pod for pod in pods if pod["status"].get("phase") not in ("Failed", "Succeeded")]
            pods = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return {pod["metadata"]["name"]: node_of(pod) for pod in pods}

    def _held(self) -> Pods:
        return dict(self._ask("held"))

    def _charges(self) -> dict[str, int]:
        code = "import json; from tests.kube.change_stream import stored_charges; print(json.dumps(stored_charges()))"
        found: dict[str, int] = json.loads(self._ask("execute", code=code))
        return found

    def _awaits(self, name: str) -> Callable[[set[str]], None]:
        code = f"import json; from tests.kube.change_stream import {name}; print(json.dumps(sorted({name}())))"

        def wait(wanted: set[str]) -> None:
            holds = lambda: wanted <= set(json.loads(self._ask("execute", code=code)))  # noqa: E731
            wait_until(holds, what=self._ours.log_tails, seconds=PATIENCE_SECONDS)

        return wait


def charge_differences(ours: dict[str, int], theirs: dict[str, int]) -> dict[str, int]:
    """Return the thousandths of CPUs that hetsched charges in addition to Kubernetes, by a text with the node."""
    return {
        f"{ours.get(node, 0)}m instead of {theirs[node]}m charged on {node}": ours.get(node, 0) - theirs[node]
        for node in theirs
        if ours.get(node, 0) != theirs[node]
    }


# -- without kills, and with planted bugs ------------------------------------------------------------------------------


class Stage:
    """An informer that a test runs in its own thread, and a stream of changes."""

    def __init__(
        self, follower: Informer, api: Api, kubelet: ResizingKubelet, recorder: Recorder, draw: random.Random
    ) -> None:
        self.kubelet = kubelet
        self._follower, self._api, self._recorder = follower, api, recorder
        self.stream = ChangeStream(
            api,
            recorder,
            draw,
            lambda wanted: eventually(follower, lambda: wanted <= change_stream.stored_taints()),
            lambda wanted: eventually(follower, lambda: wanted <= change_stream.stored_unlabelled()),
        )

    def run(self, rounds: int, *checks: Callable[[], list[str]]) -> list[str]:
        """Make changes until a check finds a fault, at most for some rounds; return the faults."""
        found: list[str] = []
        for _ in range(rounds):
            self.stream.begin_round()
            for _ in range(2 * CHANGES):
                self.stream.change()
                self._follower.iterate()
            while self.stream.create():
                self._follower.iterate()
            self.stream.allow_all()
            for _ in range(20):
                self._follower.iterate()
            found = [fault for check in checks for fault in check()]
            if found:
                break
            self.stream.delete_all()
            eventually(self._follower, lambda: not listed(self._api)[0] and self._recorder.saw_all_deletions())
            self.stream.delete_claims()
            self._recorder.forget()
        return found

    def double_grants(self) -> list[str]:
        return self._recorder.checked()[0]

    def wrong_places(self) -> list[str]:
        return self._recorder.checked()[1]

    def wrong_charges(self) -> list[str]:
        """Run the informer until its charges are those of Kubernetes; return the nodes where they are not."""
        until = time.monotonic() + 20
        while wrong := charge_differences(change_stream.stored_charges(), self._recorder.charges()):
            if time.monotonic() > until:
                break
            self._follower.iterate()
        return list(wrong)


@pytest.fixture
def stage(devices_api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(binding_cycle, "api_of", lambda _: devices_api)
    lease = following.take(cluster.pk, "test")
    assert lease is not None
    host = InformerHost(cluster, devices_api)
    follower = Informer(lease, devices_api, threading.Event(), host=host)
    follower.start()
    eventually(follower, lambda: Node.objects.count() == len(NAMES))
    with (
        ResizingKubelet(devices_api, CAPACITY, REFUSALS) as kubelet,
        Recorder(devices_api, CAPACITY, ZONES) as recorder,
    ):
        found = Stage(follower, devices_api, kubelet, recorder, random.Random(SEED))
        yield found
        found.stream.allow_all()
        found.stream.delete_all()
        eventually(follower, lambda: not listed(devices_api)[0])
        found.stream.delete_claims()
    follower.ended.set()
    host.close()


@pytest.mark.django_db
def test_changes_lead_to_correct_bindings_and_charges(stage: Stage) -> None:
    rounds, refused = 0, set()
    while rounds < 3 and not refused >= set(REFUSALS.values()):
        assert stage.run(1, stage.double_grants, stage.wrong_places, stage.wrong_charges) == [], SEED
        rounds, refused = rounds + 1, set(stage.kubelet.resizes)
    assert refused == {"actuated", *REFUSALS.values()}, SEED
    assert stage.stream.done["resize"] > 3


def _ignore(monkeypatch: pytest.MonkeyPatch, name: str, field: str) -> None:
    monkeypatch.setattr(in_place, name, tuple(each for each in getattr(in_place, name) if each != field))


def _is_pending(status: FieldView) -> bool:
    return any(condition.text("type") == "PodResizePending" for condition in status.views("conditions"))


PLANTED: dict[str, tuple[Callable[[Stage], list[str]], Callable[[pytest.MonkeyPatch], None]]] = {
    "resizes are not charged": (Stage.double_grants, lambda patch: _ignore(patch, "_OF_SHAPE", "requests")),
    "labels are not updated": (Stage.wrong_places, lambda patch: _ignore(patch, "_OF_POD", "labels")),
    "taints are ignored": (
        Stage.wrong_places, lambda patch: patch.setattr(device_search, "repelling", lambda *_: None)
    ),
    "infeasible resizes are charged": (
        Stage.wrong_charges, lambda patch: patch.setattr(requests, "_resize_infeasible", lambda _: False)
    ),
    "deferred resizes are not charged": (
        Stage.wrong_charges, lambda patch: patch.setattr(requests, "_resize_infeasible", _is_pending)
    ),
}  # fmt: skip


@pytest.mark.django_db
@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_found(bug: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    check, plant = PLANTED[bug]
    plant(monkeypatch)
    assert stage.run(10, lambda: check(stage)), SEED
