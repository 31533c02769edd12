"""The podresources interface: parsed allocations, and bounded waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from hetsched.agent.kubelet.podresources import (
    MAX_BYTES,
    Allocatable,
    ContainerResources,
    HeldDevices,
    PodResources,
    PodResourcesClient,
    PodResourcesFailure,
    with_pods,
)
from hetsched.contracts.messages.agent_report import KubeletState
from tests.unit.agent.pod_resources import FakeKubelet, container

GPU = "nvidia.com/gpu"


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[FakeKubelet]:
    fake = FakeKubelet(tmp_path / "kubelet.sock").start()
    yield fake
    fake.stop()


def failure(lister: PodResourcesClient) -> str:
    with pytest.raises(PodResourcesFailure) as caught:
        lister.pods()
    return caught.value.code


def test_cpus_and_devices_of_containers_are_read(kubelet: FakeKubelet) -> None:
    kubelet.pods = {
        ("team", "train"): [container("main", (2, 3, 8), {GPU: ("GPU-1", "GPU-2")}, 1), container("side")],
        ("default", "web"): [],
    }
    assert PodResourcesClient(kubelet.socket).pods() == (
        PodResources(
            "team",
            "train",
            (
                ContainerResources("main", "2-3,8", (HeldDevices(GPU, ("GPU-1", "GPU-2"), (1,)),)),
                ContainerResources("side"),
            ),
        ),
        PodResources("default", "web"),
    )


def test_numbers_no_machine_has_are_left_out(kubelet: FakeKubelet) -> None:
    kubelet.pods = {("a", "b"): [container("c", (-1, 4, 2**40))]}
    assert PodResourcesClient(kubelet.socket).pods()[0].containers[0].cpus == "4"


def test_allocatable_resources_are_read(kubelet: FakeKubelet) -> None:
    kubelet.cpus = (1, 2, 3)
    assert PodResourcesClient(kubelet.socket).allocatable() == Allocatable("1-3")


def test_hanging_kubelet_times_out(kubelet: FakeKubelet) -> None:
    kubelet.answering.clear()
    lister = PodResourcesClient(kubelet.socket, timeout_seconds=0.2)
    assert failure(lister) == "DEADLINE_EXCEEDED"
    kubelet.answering.set()
    assert PodResourcesClient(kubelet.socket).pods() == ()


def test_client_reconnects_after_a_kubelet_restart(kubelet: FakeKubelet) -> None:
    lister = PodResourcesClient(kubelet.socket)
    assert lister.pods() == ()
    kubelet.stop()
    assert failure(lister) in {"NO_SOCKET", "UNAVAILABLE"}
    kubelet.start()
    assert lister.pods() == ()
    lister.close()


def test_oversized_response_is_rejected(kubelet: FakeKubelet) -> None:
    kubelet.pods = {("a", "b"): [container("c", (), {GPU: ("x" * MAX_BYTES,)})]}
    assert failure(PodResourcesClient(kubelet.socket)) == "RESOURCE_EXHAUSTED"


def test_missing_podresources_interface_is_reported(kubelet: FakeKubelet) -> None:
    kubelet.failure = grpc.StatusCode.UNIMPLEMENTED
    assert failure(PodResourcesClient(kubelet.socket)) == "UNIMPLEMENTED"


@pytest.mark.parametrize("kind", ["absent", "file", "folder"])
def test_non_socket_is_not_called(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "it"
    if kind == "file":
        path.write_text("")
    elif kind == "folder":
        path.mkdir()
    assert failure(PodResourcesClient(path)) == "NO_SOCKET"


def test_podresources_precede_the_kubelets_files() -> None:
    files = KubeletState(
        "static",
        reserved_cpus="4",
        exclusive={"uid-0": {"old": "7"}},
        sources=("cpu_manager_state",),
        reserved_number=1,
    )
    pods = (
        PodResources("team", "train", (ContainerResources("main", "2-3", (HeldDevices(GPU, ("GPU-1",)),)),)),
        PodResources("team", "other", (ContainerResources("main", "4"),)),
    )
    kubelet_state = with_pods(files, pods, Allocatable("1-7"), online="0-7")
    assert kubelet_state.exclusive == {"team/train": {"main": "2-3"}, "team/other": {"main": "4"}}
    assert kubelet_state.devices == {"team/train": {"main": {GPU: ("GPU-1",)}}}
    assert (kubelet_state.reserved_cpus, kubelet_state.reserved_number) == ("0", None)
    assert kubelet_state.sources == ("cpu_manager_state", "podresources")


def test_pod_is_identified_by_its_exclusive_cpus() -> None:
    files = KubeletState("static", exclusive={"uid-7": {"main": "2-3"}})
    pods = (PodResources("team", "train", (ContainerResources("main", "2-3", (HeldDevices(GPU, ("GPU-1",)),)),)),)
    assert with_pods(files, pods).devices == {"uid-7": {"main": {GPU: ("GPU-1",)}}}


def test_reserved_cpus_are_the_static_policys_alone() -> None:
    assert with_pods(KubeletState("none"), (), Allocatable("1-7"), online="0-7").reserved_cpus is None
