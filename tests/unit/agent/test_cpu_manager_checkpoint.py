"""The CPU manager's checkpoint is validated as by the kubelet at its start; options are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hetsched.agent.kubelet.podresources import (
    Allocatable,
    ContainerResources,
    HeldDevices,
    PodResources,
    with_pods,
)
from hetsched.agent.kubelet.state import probe_kubelet
from hetsched.agent.tree import Tree
from hetsched.contracts.messages.agent_report import KubeletState, MachineCpu
from tests.unit.agent.trees import put

FOLDER = "var/lib/kubelet"
CPUS = tuple(MachineCpu(cpu, cpu, 0, 0, str(cpu)) for cpu in range(8))
CONFIG = "kind: KubeletConfiguration\ncpuManagerPolicy: static\nreservedSystemCPUs: 0-1\n"
STRICT = CONFIG + 'cpuManagerPolicyOptions:\n  strict-cpu-reservation: "true"\n'


def problems(
    root: Path, shared: str, config: str = CONFIG, *, cpus: tuple[MachineCpu, ...] = CPUS, **exclusive: str
) -> list[tuple[str, str]]:
    """Return code and CPUs of the problems of a checkpoint, by default with 8 online CPUs, 0 and 1 reserved."""
    entries = {uid: {"main": cpus} for uid, cpus in exclusive.items()}
    state = {"policyName": "static", "defaultCpuSet": shared, "entries": entries, "checksum": 0}
    put(root, f"{FOLDER}/cpu_manager_state", json.dumps(state))
    put(root, f"{FOLDER}/config.yaml", config)
    tree = Tree(root)
    probe_kubelet(tree, cpus)
    return [(problem.code, problem.message.partition("CPUs ")[2].partition(" ")[0]) for problem in tree.problems]


def test_consistent_checkpoint_has_no_problems(tmp_path: Path) -> None:
    assert problems(tmp_path, "0-3,6-7", a="4-5") == []
    # Under strict-cpu-reservation the reserved CPUs are in no set.
    assert problems(tmp_path, "2-3,6-7", STRICT, a="4-5") == []


def test_online_cpus_in_no_set_are_reported(tmp_path: Path) -> None:
    # 8 online CPUs, 0-2 shared and 4-5 exclusive: 3, 6 and 7 are in no set.
    assert problems(tmp_path, "0-2", a="4-5") == [("KubeletCpusUnassigned", "3,6-7")]
    assert problems(tmp_path, "2", STRICT, a="4-5") == [("KubeletCpusUnassigned", "3,6-7")]


def test_reserved_cpus_in_exclusive_use_are_reported(tmp_path: Path) -> None:
    assert problems(tmp_path, "0,2-5", a="1,6-7") == [("KubeletReservedExclusive", "1")]


@pytest.mark.parametrize("strict", ["true", "false"])
def test_reserved_cpus_of_an_unknown_kubelet_version_are_not_checked(tmp_path: Path, strict: str) -> None:
    # Zones of 2, 4 | 3 and 3 CPUs, 5 are reserved by number: 2-4,6-7 before Kubernetes 1.37, and 0-4 since.
    zones = (range(2), range(2, 6), range(6, 9), range(9, 12))
    cpus = tuple(MachineCpu(cpu, cpu, at // 2, at, str(cpu)) for at, zone in enumerate(zones) for cpu in zone)
    options = {"align-by-socket": "true", "distribute-cpus-across-numa": "true", "strict-cpu-reservation": strict}
    stated = "".join(f"  {name}: '{value}'\n" for name, value in options.items())
    config = f"cpuManagerPolicy: static\nkubeReserved:\n  cpu: '5'\ncpuManagerPolicyOptions:\n{stated}"
    shared = "5,8-11" if strict == "true" else "0-5,8-11"
    assert problems(tmp_path, shared, config, cpus=cpus, a="6-7") == []


def test_strict_reservation_reports_reserved_cpus_in_the_shared_pool(tmp_path: Path) -> None:
    assert problems(tmp_path, "1-7", STRICT) == [("KubeletReservedShared", "1")]
    assert problems(tmp_path, "0-7", CONFIG) == []


def test_empty_shared_pool_with_exclusive_cpus_is_reported(tmp_path: Path) -> None:
    assert problems(tmp_path, "", STRICT, a="2-7") == [("KubeletSharedEmpty", "2-7")]


def test_empty_checkpoint_is_not_a_problem(tmp_path: Path) -> None:
    assert problems(tmp_path, "") == []


def test_options_of_both_managers_are_reported(tmp_path: Path) -> None:
    put(
        tmp_path,
        f"{FOLDER}/config.yaml",
        'cpuManagerPolicyOptions:\n  full-pcpus-only: "true"\n'
        'topologyManagerPolicyOptions:\n  prefer-closest-numa-nodes: "true"\n  max-allowable-numa-nodes: "16"\n',
    )
    tree = Tree(tmp_path)
    found = probe_kubelet(tree, CPUS)
    assert found is not None
    assert found.cpu_manager_options == {"full-pcpus-only": "true"}
    assert found.topology_manager_options == {"prefer-closest-numa-nodes": "true", "max-allowable-numa-nodes": "16"}
    assert tree.problems == []


@pytest.mark.parametrize("option", ['shiny-new-option: "true"', "full-pcpus-only: maybe"])
def test_options_that_are_not_modelled_are_reported_as_unknown(tmp_path: Path, option: str) -> None:
    put(tmp_path, f"{FOLDER}/config.yaml", f"cpuManagerPolicyOptions:\n  {option}\n")
    tree = Tree(tmp_path)
    probe_kubelet(tree, CPUS)
    assert [problem.code for problem in tree.problems] == ["KubeletOptionUnknown"]
    assert option.partition(":")[0] in tree.problems[0].message


def test_zones_of_devices_and_names_of_pods_are_read() -> None:
    nic = "example.com/nic"
    files = KubeletState("static", exclusive={"uid-1": {"main": "2-3"}})
    pods = (PodResources("team", "p", (ContainerResources("main", "2-3", (HeldDevices(nic, ("mlx0",), (1,)),)),)),)
    everything: dict[str, Any] = {nic: {"mlx0": (1,), "mlx1": ()}}
    offered = (HeldDevices(nic, ("mlx0",), (1,)), HeldDevices(nic, ("mlx1",)), HeldDevices("example.com/plain", ("x",)))
    kubelet_state = with_pods(files, pods, Allocatable("0-7", offered))
    assert kubelet_state.device_zones == everything  # a resource of which no device has a zone gives no hint
    assert kubelet_state.pod_names == {"uid-1": "team/p"}
