"""hetsched's prediction of kubelet admission agrees with the kubelet's own code on random nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from hetsched.contracts.cpu_topology import Topology
from hetsched.contracts.cpuset import format_cpuset
from hetsched.engine.numa import topology_manager
from hetsched.engine.numa.memory_manager import MemoryManager
from hetsched.engine.numa.resource_managers import CpuManager
from tests import parts
from tests.kube import control_plane

from .clusters import Case
from .kubelet.admissions import Kubelet
from .kubelet.comparison import BUSY_CPUS, INTENDED, differences
from .kubelet.nodes import draw
from .summary import KUBELET, compare, minimal

pytestmark = pytest.mark.needs(control_plane.KUBELET_VERDICTS)
CASES = 1000
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "kubelet-differences.md"


@pytest.fixture(scope="module")
def kubelet() -> Iterator[Kubelet]:
    with Kubelet(parts.require(control_plane.KUBELET_VERDICTS)) as running:
        yield running


@pytest.mark.parametrize("first", range(0, CASES, 250))
def test_random_nodes_have_no_unexplained_difference(kubelet: Kubelet, first: int) -> None:
    summary = compare(KUBELET, kubelet, range(first, first + 250))
    assert summary.pods > 1000
    assert not summary.unexplained, minimal(KUBELET, *summary.unexplained[0], kubelet)


def test_page_explains_every_intended_difference() -> None:
    explained = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(explained) == sorted(INTENDED)


@pytest.mark.parametrize(("cpus", "expected"), [(19, "6-10,12-16,24-28,50-53"), (21, "6-16,24-28,30,50-53")])
def test_distribution_over_an_overwritten_combination(kubelet: Kubelet, cpus: int, expected: str) -> None:
    """NUMA node 8 replaces NUMA node 5 in the kubelet's best combination; random nodes do not have this effect."""
    numa = [
        {
            "id": node, "distances": {str(other): 10 if other == node else 20 for other in range(9)},
            "cores": [{"threads": [6 * node + core], "socket": node // 3, "cache": node} for core in range(6)],
        }
        for node in range(9)
    ]  # fmt: skip
    configuration = {
        "topologyPolicy": "none", "topologyScope": "container", "topologyOptions": {}, "cpuPolicy": "static",
        "cpuOptions": {"distribute-cpus-across-numa": "true"}, "reservedCPUs": "0-5,18-23,36-37,42-43,48-49",
        "reservedMillis": 18000,
    }  # fmt: skip
    amounts = {"cpu": str(cpus), "memory": "64Mi"}
    containers = [{"name": "c0", "image": "image", "resources": {"limits": amounts, "requests": amounts}}]
    meta = {"name": "p0", "namespace": "default", "uid": "p0"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": containers}}
    case = Case(0, [{"numa": numa, "kubelet": configuration, "devices": {}}], [pod])
    assert list(differences(case, kubelet)) == []
    (admission,) = kubelet.admit(case).pods
    assert format_cpuset(admission.cpus) == expected


def test_init_container_that_shares_a_cpu_of_a_sidecar_is_named(kubelet: Kubelet) -> None:
    """The kubelet counts the core of CPUs 6 and 7 as free, because 7 is free and its mean core has one CPU (8 of 5)."""
    numa = [
        {
            "id": node,
            "distances": {"0": 10, "1": 10},
            "cores": [{"threads": c, "socket": node, "cache": 0} for c in cores],
        }
        for node, cores in enumerate([([0, 1], [4, 5], [6, 7]), ([8], [9])])
    ]
    configuration = {
        "topologyPolicy": "best-effort", "topologyScope": "container", "topologyOptions": {}, "cpuPolicy": "static",
        "cpuOptions": {}, "reservedCPUs": "9", "reservedMillis": 1000,
    }  # fmt: skip
    asked = {"sidecar": "5", "init": "2", "main": "100m"}
    containers = {
        name: {"name": name, "image": "image", "resources": {"limits": amounts, "requests": amounts}}
        for name, cpus in asked.items() for amounts in ({"cpu": cpus, "memory": "64Mi"},)
    }  # fmt: skip
    sidecar = {**containers["sidecar"], "restartPolicy": "Always"}
    meta = {"name": "p0", "namespace": "default", "uid": "p0"}
    spec = {"initContainers": [sidecar, containers["init"]], "containers": [containers["main"]]}
    case = Case(
        0,
        [{"numa": numa, "kubelet": configuration, "devices": {}}],
        [{"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}],
    )
    (admission,) = kubelet.admit(case).pods
    assert format_cpuset(admission.shared) == "6"
    assert [difference.name for difference in differences(case, kubelet)] == [BUSY_CPUS]


# -- planted bugs ------------------------------------------------------------------------------------------------------


def ignore_full_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Admit requests that are not a multiple of the threads of a core under `full-pcpus-only`."""

    def refusal(manager: CpuManager, asked: int) -> str:
        free = (manager.available | manager.reusable).bit_count()
        return topology_manager.UNEXPECTED_ADMISSION_ERROR if asked > free else ""

    monkeypatch.setattr(CpuManager, "refusal", refusal)


def prefer_high_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge hints with the highest instead of the lowest NUMA nodes first."""
    monkeypatch.setattr(topology_manager, "_fitness", lambda mask, _: (mask.bit_count(), 0.0, -mask))


def ignore_reserved_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assign reserved CPUs to pods."""
    monkeypatch.setattr(Topology, "reserved", property(lambda _: 0))


def ignore_memory_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assign memory of a NUMA node to containers on different sets of NUMA nodes."""
    monkeypatch.setattr(MemoryManager, "_usable", lambda *_: True)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[pytest.MonkeyPatch], None]], None]]:
    """Return a function that plants a bug; predictions with and without the bug are not cached together."""

    def planted(bug: Callable[[pytest.MonkeyPatch], None]) -> None:
        forget_predictions()
        bug(monkeypatch)

    yield planted
    monkeypatch.undo()
    forget_predictions()


def forget_predictions() -> None:
    topology_manager.verdict.cache_clear()
    topology_manager.reason.cache_clear()


Plant = Callable[[Callable[[pytest.MonkeyPatch], None]], None]
BUGS = (ignore_full_cores, prefer_high_zones, ignore_reserved_cpus, ignore_memory_groups)


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_found(kubelet: Kubelet, bug: Callable[[pytest.MonkeyPatch], None], plant: Plant) -> None:
    plant(bug)
    batches = (range(first, first + 25) for first in range(0, CASES, 25))
    assert any(compare(KUBELET, kubelet, batch).unexplained for batch in batches)


def test_minimal_case_keeps_only_what_differs(kubelet: Kubelet, plant: Plant) -> None:
    plant(ignore_full_cores)
    batches = (compare(KUBELET, kubelet, range(first, first + 25)) for first in range(0, CASES, 25))
    found = next(summary.unexplained[0] for summary in batches if summary.unexplained)
    text = minimal(KUBELET, *found, kubelet)
    assert "full-pcpus-only:" in text
    assert text.count("kind: Pod\n") == 1
    assert "initContainers" not in text


def test_rejected_configuration_is_an_error(kubelet: Kubelet) -> None:
    case = draw(1)
    configuration = {**case.objects[0]["kubelet"], "topologyPolicy": "unknown"}
    case = msgspec.structs.replace(case, objects=[{**case.objects[0], "kubelet": configuration}])
    with pytest.raises(RuntimeError, match="unknown policy"):
        kubelet.admit(case)
