"""The kubelet's configuration, its CPU manager state in all forms, and its reserved CPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsched.agent.kubelet.config import read_config
from hetsched.agent.kubelet.state import fnv1a, kubelet_fingerprint, probe_kubelet
from hetsched.agent.tree import Tree
from hetsched.contracts.messages.agent_report import KubeletState, MachineCpu, MemoryBlock
from hetsched.contracts.objects.kubelet_options import KubeletOptions
from hetsched.contracts.reserved_cpus import reserved_by_amount
from tests.unit.agent.trees import put

FOLDER = "var/lib/kubelet"
CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous:
    enabled: false
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
clusterDNS:
- 10.96.0.10
cpuManagerPolicy: static   # pins
cpuManagerPolicyOptions:
  full-pcpus-only: "true"
  strict-cpu-reservation: 'false'
evictionHard: {}
memoryManagerPolicy: Static
reservedSystemCPUs: "0,4"
shutdownGracePeriod: 0s
topologyManagerPolicy: single-numa-node
topologyManagerScope: pod
"""


def kubelet(root: Path, state: object = None, config: str | None = None) -> Tree:
    put(root, f"{FOLDER}/cpu_manager_state", state if state is None or isinstance(state, str) else json.dumps(state))
    put(root, f"{FOLDER}/config.yaml", config)
    return Tree(root)


def codes(tree: Tree) -> list[str]:
    return [problem.code for problem in tree.problems]


def found(tree: Tree, cpus: tuple[MachineCpu, ...] = ()) -> KubeletState:
    state = probe_kubelet(tree, cpus)
    assert state is not None
    return state


def cpus(cores: int, threads: int = 2, zones: int = 1, sockets: int = 1) -> tuple[MachineCpu, ...]:
    """Return a machine with siblings `i, i + cores` and cores spread over zones and sockets in blocks."""
    return tuple(
        MachineCpu(i, i % cores, i % cores * sockets // cores, i % cores * zones // cores, None)
        for i in range(cores * threads)
    )


# -- configuration -----------------------------------------------------------------------------------------------------


def test_configuration_is_read(tmp_path: Path) -> None:
    tree = kubelet(tmp_path, config=CONFIG)
    assert found(tree) == KubeletState(
        "static",
        {"full-pcpus-only": "true", "strict-cpu-reservation": "false"},
        "single-numa-node",
        "pod",
        "Static",
        "0,4",
        sources=("config",),
    )
    assert tree.problems == []


def test_json_configuration_is_equivalent(tmp_path: Path) -> None:
    document = {
        "kind": "KubeletConfiguration",
        "cpuManagerPolicy": "static",
        "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
        "reservedSystemCPUs": "0-1",
        "maxPods": 10,
    }
    state = found(kubelet(tmp_path, config=json.dumps(document)))
    assert state.reserved_number is None
    assert (state.cpu_manager_policy, state.cpu_manager_options, state.reserved_cpus) == (
        "static", {"full-pcpus-only": "true"}, "0-1",
    )  # fmt: skip


def test_missing_value_has_the_kubelets_default(tmp_path: Path) -> None:
    state = found(kubelet(tmp_path, config="kind: KubeletConfiguration\ncpuManagerPolicy: ~"))
    assert state == KubeletState("none", {}, "none", "container", "None", sources=("config",))


@pytest.mark.parametrize(
    "line",
    [
        "cpuManagerPolicy: &p static", "cpuManagerPolicy: !!str static", "cpuManagerPolicy: |\n  static",
        "cpuManagerPolicy:\n  static", "cpuManagerPolicy: >-\n  static", "cpuManagerPolicy: [static]",
        'cpuManagerPolicy: "sta\\u0074ic"', "cpuManagerPolicy: static\ncpuManagerPolicy: none",
        "cpuManagerPolicy: a: b", "cpuManagerPolicy: *p", "cpuManagerPolicy: 'it''s'",
    ],
)  # fmt: skip
def test_unsupported_yaml_gives_unknown_values(tmp_path: Path, line: str) -> None:
    tree = kubelet(tmp_path, config=f"kind: KubeletConfiguration\n{line}\ntopologyManagerScope: pod")
    state = found(tree)
    assert (state.cpu_manager_policy, state.topology_manager_scope) == (None, "pod")
    assert codes(tree) == ["KubeletConfigUnreadable"]


@pytest.mark.parametrize("options", ["{full-pcpus-only: 'true'}", "\n  a: {b: c}", "\n  a: b\n    c: d", "\n  - a"])
def test_options_in_another_form_are_unknown(tmp_path: Path, options: str) -> None:
    config = read_config(kubelet(tmp_path, config=f"cpuManagerPolicyOptions: {options}"))
    assert config is not None
    assert config.unknown == {"cpuManagerPolicyOptions"}


@pytest.mark.parametrize(
    "text",
    ["kind: Pod", "- a", "a: b\n---\nc: d", "{", "[]", "cpuManagerPolicy static", "%YAML 1.2", '{"kind": "Pod"}'],
)
def test_document_of_another_kind_is_rejected(tmp_path: Path, text: str) -> None:
    tree = kubelet(tmp_path, config=text)
    assert found(tree) == KubeletState()
    assert codes(tree) == ["KubeletConfigUnreadable", "KubeletUnknown"]


def test_flags_override_the_file(tmp_path: Path) -> None:
    put(
        tmp_path,
        f"{FOLDER}/kubeadm-flags.env",
        'KUBELET_KUBEADM_ARGS="--cpu-manager-policy=none --reserved-cpus=1 --cpu-manager-policy-options=a=b,c=d --v=2"',
    )
    state = found(kubelet(tmp_path, config=CONFIG))
    assert (state.cpu_manager_policy, state.reserved_cpus, state.cpu_manager_options) == (
        "none", "1", {"a": "b", "c": "d"},
    )  # fmt: skip


@given(st.text(st.sampled_from("ab: -#\"'{}[]\n\t&*|>!%~,"), max_size=60) | st.text(max_size=40))
def test_no_configuration_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    root = tmp_path_factory.mktemp("k")
    probe_kubelet(kubelet(root, config=f"cpuManagerPolicy: {text}", state=text))


# -- the state of the CPU manager
# ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state",
    [
        # from kubelet's own tests
        {"policyName": "none", "defaultCPUSet": "4-6", "entries": {}, "checksum": 354655845},
        {"policyName": "none", "defaultCPUSet": "1-3", "checksum": 1694838852},
        {"policyName": "other", "defaultCPUSet": "1-3", "entries": {}, "checksum": 1394507217},
        {"policyName": "none", "defaultCPUSet": "1-3", "entries": {"pod": {"container1": "4-6", "container2": "1-3"}},
         "checksum": 3610638499},
        {"policyName": "none", "defaultCPUSet": "1-3", "entries": {"containerID1": "4-6", "containerID2": "1-3"},
         "checksum": 3680390589},
        {"policyName": "none", "defaultCPUSet": "4-6", "entries": {}, "checksum": 0},
        {"POLICYNAME": "none", "DefaultCpuSet": "4-6", "Entries": None, "CHECKSUM": 354655845},
    ],
)  # fmt: skip
def test_checksums_fit(tmp_path: Path, state: dict[str, object]) -> None:
    tree = kubelet(tmp_path, state)
    probe_kubelet(tree)
    assert "KubeletStateCorrupt" not in codes(tree)


def test_grants_and_the_shared_pool_are_read(tmp_path: Path) -> None:
    entries = {"uid-1": {"main": "1", "side": "5"}, "uid-2": {"main": "6-7"}}
    tree = kubelet(tmp_path, {"policyName": "static", "defaultCpuSet": "0,2-4", "entries": entries, "checksum": 0})
    state = found(tree, cpus(4))
    assert (state.cpu_manager_policy, state.shared_cpus, state.exclusive) == ("static", "0,2-4", entries)
    assert tree.problems == []


def test_wrong_checksum_is_only_reported(tmp_path: Path) -> None:
    tree = kubelet(tmp_path, {"policyName": "static", "defaultCpuSet": "0-3", "checksum": 1337})
    assert found(tree).shared_cpus == "0-3"
    assert codes(tree) == ["KubeletStateCorrupt"]


def test_newest_checkpoint_format_is_read_from_data(tmp_path: Path) -> None:
    data = json.dumps({"policyName": "static", "defaultCpuSet": "0", "entries": {"u": {"c": "1"}}})
    outer = {"policyName": "none", "data": data, "checksum": 0}
    tree = kubelet(tmp_path, outer | {"dataChecksum": fnv1a(f"(string){data}")})
    assert found(tree).exclusive == {"u": {"c": "1"}}
    assert found(tree).cpu_manager_policy == "static"
    assert tree.problems == []
    kubelet(tmp_path, outer | {"dataChecksum": 5})
    assert found(tree).shared_cpus == "0"
    assert codes(tree) == ["KubeletStateCorrupt"]


def test_cpus_of_pods_as_a_whole_are_theirs(tmp_path: Path) -> None:
    pods = {"u": {"cpuSet": "4-6"}}
    sets = {"defaultCpuSet": "0-3,7", "entries": {"u": {"c": "4"}}, "podEntries": pods}
    tree = kubelet(tmp_path, {"policyName": "static", **sets, "checksum": 9})
    assert found(tree).exclusive == {"u": {"c": "4", "": "4-6"}}
    assert tree.problems == []


def test_state_file_precedes_the_configuration(tmp_path: Path) -> None:
    tree = kubelet(tmp_path, {"policyName": "none", "defaultCpuSet": "", "checksum": 0}, CONFIG)
    assert found(tree).cpu_manager_policy == "none"
    assert codes(tree) == ["KubeletContradicts"]


@pytest.mark.parametrize(
    ("entries", "shared"), [({"a": {"c": "1"}, "b": {"c": "1"}}, "0"), ({"a": {"c": "1"}}, "0-1"), ({}, "0-9")]
)
def test_impossible_sets_are_reported(tmp_path: Path, entries: dict[str, dict[str, str]], shared: str) -> None:
    tree = kubelet(tmp_path, {"policyName": "static", "defaultCpuSet": shared, "entries": entries, "checksum": 0})
    found(tree, cpus(4))
    assert codes(tree) == ["KubeletContradicts"]


@pytest.mark.parametrize(
    "state", ["", "{", "[]", "null", {"policyName": 1}, {"policyName": "static", "defaultCpuSet": "1.3"},
              {"policyName": "static", "entries": {"a": {"b": 1}}}, {"policyName": "static", "entries": [1]},
              {"data": "[]"}],
)  # fmt: skip
def test_unreadable_state_file_is_reported(tmp_path: Path, state: object) -> None:
    tree = kubelet(tmp_path, state)
    assert found(tree) == KubeletState()
    assert codes(tree) == ["KubeletStateUnreadable", "KubeletUnknown"]


def test_memory_manager_policy_is_read(tmp_path: Path) -> None:
    put(tmp_path, f"{FOLDER}/memory_manager_state", '{"policyName":"Static","machineState":{},"checksum":1}')
    assert found(Tree(tmp_path)).memory_manager_policy == "Static"


def test_memory_of_the_memory_manager_is_read(tmp_path: Path) -> None:
    table = {"total": 8 << 30, "systemReserved": 1 << 30, "allocatable": 7 << 30, "reserved": 1 << 30, "free": 6 << 30}
    node = {"numberOfAssignments": 1, "memoryMap": {"memory": table}, "cells": [0, 1]}
    blocks = [{"numaAffinity": [0, 1], "type": "memory", "size": 1 << 30}]
    state = {"policyName": "Static", "machineState": {"0": node, "1": node}, "entries": {"uid": {"main": blocks}}}
    put(tmp_path, f"{FOLDER}/memory_manager_state", json.dumps(state))
    kubelet_state = found(Tree(tmp_path))
    assert kubelet_state.memory == {"0": {"memory": 7 << 30}, "1": {"memory": 7 << 30}}
    assert kubelet_state.memory_blocks == {"uid": {"main": (MemoryBlock((0, 1), "memory", 1 << 30),)}}
    assert kubelet_state.holders == {"uid"}


@pytest.mark.parametrize(
    "state",
    [
        "{",
        "[]",
        '{"policyName":1}',
        '{"policyName":"Static","machineState":{"0":{"memoryMap":{"memory":{"allocatable":-1}}}}}',
    ],
)
def test_unreadable_memory_state_is_reported_and_unknown(tmp_path: Path, state: str) -> None:
    put(tmp_path, f"{FOLDER}/memory_manager_state", state)
    tree = kubelet(tmp_path, {"policyName": "none"})
    assert found(tree).memory is None
    assert "KubeletStateUnreadable" in codes(tree)


def test_machine_without_a_kubelet_has_no_kubelet_state(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    assert probe_kubelet(tree) is None
    assert codes(tree) == ["NoKubelet"]


def test_fingerprint_changes_with_the_files(tmp_path: Path) -> None:
    tree = kubelet(tmp_path, config=CONFIG)
    before = kubelet_fingerprint(tree)
    assert kubelet_fingerprint(tree) == before
    kubelet(tmp_path, {"policyName": "static"})
    assert kubelet_fingerprint(tree) != before


# -- reserved CPUs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "count", "reserved"),
    [
        (cpus(4), 2, {0, 4}),  # 8 CPUs with SMT: the first whole core
        (cpus(4), 1, {0}),
        (cpus(4), 3, {0, 4, 1}),
        (cpus(4), 0, set()),
        (cpus(4, zones=2, sockets=2), 4, {0, 1, 4, 5}),  # zone 0 fits as a whole
        # all of zone 0, then of zone 1 its first core
        (cpus(4, zones=2, sockets=2), 6, {0, 1, 4, 5, 2, 6}),
        (cpus(8, threads=1, zones=4, sockets=2), 2, {0, 1}),  # sockets of 4 do not fit, the first zone does
        (cpus(8, threads=1, zones=4, sockets=2), 5, {0, 1, 2, 3, 4}),  # socket 0, then one CPU of the next zone
    ],
)
def test_reserved_amounts_are_rounded_like_the_kubelet(
    machine: tuple[MachineCpu, ...], count: int, reserved: set[int]
) -> None:
    assert reserved_by_amount(machine, count, KubeletOptions()) == frozenset(reserved)


@pytest.mark.parametrize(
    ("option", "count", "reserved"),
    [
        # Cores (0,4) (1,5) of zone 0 and (2,6) (3,7) of zone 1. 2 CPUs: a core, or the lowest ids of socket 0.
        ("", 2, "0,4"),
        ("distribute-cpus-across-cores", 2, "0-1"),
        # 5 CPUs: zone 0 and one CPU of zone 1; distributed, a core of each zone and one more CPU of zone 0.
        ("", 5, "0-2,4-5"),
        ("distribute-cpus-across-numa", 5, "0-2,4,6"),
    ],
)
def test_reserved_cpus_depend_on_policy_options(tmp_path: Path, option: str, count: int, reserved: str) -> None:
    config = f"cpuManagerPolicy: static\nkubeReserved:\n  cpu: '{count}'\n"
    config += f"cpuManagerPolicyOptions:\n  {option}: 'true'\n" if option else ""
    assert found(kubelet(tmp_path, config=config), cpus(4, zones=2, sockets=2)).reserved_cpus == reserved


def test_amounts_add_up_and_are_rounded_up(tmp_path: Path) -> None:
    config = "cpuManagerPolicy: static\nkubeReserved:\n  cpu: 500m\n  memory: 1Gi\nsystemReserved:\n    cpu: 1100m\n"
    # 500m + 1100m = 1600m, so 2 CPUs: core 0 of 4
    state = found(kubelet(tmp_path, config=config), cpus(4))
    assert (state.reserved_cpus, state.reserved_number) == ("0,4", 2)


def test_reserved_cpus_are_unknown_without_the_static_policy(tmp_path: Path) -> None:
    assert found(kubelet(tmp_path, config="kubeReserved:\n  cpu: '1'"), cpus(4)).reserved_cpus is None


def test_reserved_cpus_of_an_unread_machine_are_unknown(tmp_path: Path) -> None:
    tree = kubelet(tmp_path, config="cpuManagerPolicy: static\nkubeReserved:\n  cpu: '1'")
    assert found(tree).reserved_cpus is None
    assert codes(tree) == ["ReservedCpusUnknown"]
