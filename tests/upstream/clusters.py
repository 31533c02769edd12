"""Control planes for Kubernetes' own tests, each with kube-scheduler or with hetsched.

Tests create pods for `default-scheduler`. On the control plane of hetsched, an admission policy changes the scheduler
name of new pods. Integration tests run kube-scheduler in their own process, which then has no pod to schedule.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.connections.connection import from_kubeconfig
from tests.kube.control_plane import API_SERVER, DISABLED_PLUGINS, ControlPlane
from tests.kube.feature_gates import enabled, serving
from tests.system.processes import Process, plain_environment, python, wait_until

from . import programs
from .kubelet import UpstreamKubelet
from .sets import Set

SCHEDULERS = KUBE_SCHEDULER, HETSCHED = ("kube-scheduler", "hetsched")
NODES = 4
_RESOURCES = {"cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "100Gi"}
# Integration tests of the scheduler run without these plugins too.
_NOT_IN_INTEGRATION = (*DISABLED_PLUGINS, "Priority", "StorageObjectInUseProtection")
_START_SECONDS = 600
_ADMISSION = "admissionregistration.k8s.io/v1"
Json = dict[str, Any]


@contextlib.contextmanager
def running(chosen: Set, scheduler: str, folder: Path) -> Iterator[ControlPlane]:
    """Run the cluster that a set of tests needs; its kubeconfig and all logs are in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    integrates = bool(chosen.runs) and not chosen.is_end_to_end
    disabled = () if chosen.is_end_to_end else _NOT_IN_INTEGRATION
    gates = [enabled(chosen.gate)] if chosen.gate else []
    served = [serving(chosen.serves)] if chosen.serves else []
    with contextlib.ExitStack() as stack:
        plane = stack.enter_context(ControlPlane("--allow-privileged=true", *gates, *served, disabled=disabled))
        (folder / "kubeconfig").write_text(json.dumps(plane.kubeconfig()))
        if integrates:
            _create_policy(plane, *_NODES_ARE_READY)
        if scheduler == HETSCHED:
            _create_policy(plane, *_REDIRECT)
            stack.enter_context(_hetsched(folder, forced_hold=None if chosen.is_end_to_end else 1))
        elif not integrates:
            stack.enter_context(_program(folder, [*_kube_scheduler(folder), *gates]))
        if chosen.is_end_to_end:
            manager = stack.enter_context(_program(folder, [*_controller_manager(folder, plane), *gates]))
            stack.enter_context(UpstreamKubelet(Api(from_kubeconfig(plane.kubeconfig()))))
        if not integrates:
            for number in range(NODES):
                plane.call("POST", "/api/v1/nodes", _node(number, is_ready=not chosen.is_end_to_end))
        if chosen.is_end_to_end:
            wait_until(
                lambda: not manager.running or _has_no_taints(plane), what=manager.said, seconds=_START_SECONDS
            )  # fmt: skip
            assert manager.running, manager.said()
        yield plane


def environment() -> dict[str, str]:
    return plain_environment() | {"PYTHONDONTWRITEBYTECODE": "1"}


@contextlib.contextmanager
def _program(folder: Path, words: list[str | Path]) -> Iterator[Process]:
    process = Process(words, env=environment(), log=folder / f"{Path(words[0]).name}.log")
    try:
        yield process
    finally:
        process.stop()


@contextlib.contextmanager
def _hetsched(folder: Path, forced_hold: int | None) -> Iterator[None]:
    """Run `hetsched scheduler`; no kubelet reports the end of pods that integration tests delete."""
    words = ["scheduler", "--no-web", "--data", folder / "data", "--kubeconfig", folder / "kubeconfig"]
    env = environment() | ({"HETSCHED_FORCED_HOLD_SECONDS": str(forced_hold)} if forced_hold else {})
    process = Process(python("-m", "hetsched.cli", *map(str, words)), env=env, log=folder / "hetsched.log")
    try:
        wait_until(
            lambda: "is running" in process.said() or not process.running, what=process.said, seconds=_START_SECONDS
        )
        assert process.running, process.said()
        yield
    finally:
        process.stop(signal.SIGINT)


def _kube_scheduler(folder: Path) -> list[str | Path]:
    program = programs.path_of(programs.SCHEDULER)
    return [program, f"--kubeconfig={folder}/kubeconfig", "--leader-elect=false", "--secure-port=0"]


def _controller_manager(folder: Path, plane: ControlPlane) -> list[str | Path]:
    return [
        programs.path_of(programs.CONTROLLER_MANAGER), f"--kubeconfig={folder}/kubeconfig", "--leader-elect=false",
        "--bind-address=127.0.0.1", "--secure-port=0", "--use-service-account-credentials=false",
        f"--service-account-private-key-file={plane.folder}/service-account.key",
        f"--root-ca-file={plane.folder}/certificates/apiserver.crt", "--kube-api-qps=200", "--kube-api-burst=400",
        "--controllers=*,-node-ipam-controller",
    ]  # fmt: skip


def _has_no_taints(plane: ControlPlane) -> bool:
    """Return whether the node lifecycle controller removed the taint `not-ready` from all nodes."""
    nodes = plane.call("GET", "/api/v1/nodes")["items"]
    return not any(node["spec"].get("taints") for node in nodes)


def _node(number: int, *, is_ready: bool) -> Json:
    name = f"node-{number}"
    labels = {
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/zone": f"zone-{number % 2}", "topology.kubernetes.io/region": "region-0",
    }  # fmt: skip
    info = {
        "machineID": name, "systemUUID": name, "bootID": name, "kernelVersion": "6.1.0", "osImage": "test",
        "containerRuntimeVersion": "containerd://2.2.0", "kubeletVersion": f"v{API_SERVER}", "kubeProxyVersion": "",
        "operatingSystem": "linux", "architecture": "amd64",
    }  # fmt: skip
    addresses = [{"type": "InternalIP", "address": f"10.2.0.{number + 1}"}, {"type": "Hostname", "address": name}]
    status: Json = {"capacity": _RESOURCES, "allocatable": _RESOURCES, "addresses": addresses, "nodeInfo": info}
    if is_ready:
        status["conditions"] = [{"type": "Ready", "status": "True"}]
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
        "spec": {"podCIDR": f"10.1.{number}.0/24", "podCIDRs": [f"10.1.{number}.0/24"]}, "status": status,
    }  # fmt: skip


# Policies: name, resource, condition, mutation (CEL).
_REDIRECT = (
    "to-hetsched", "pods", "object.spec.schedulerName == 'default-scheduler'",
    "Object{spec: Object.spec{schedulerName: 'hetsched'}}",
)  # fmt: skip
_NODES_ARE_READY = (
    "nodes-are-ready", "nodes", "!has(object.status.conditions)",
    "Object{status: Object.status{conditions: "
    "[Object.status.conditions{type: 'Ready', status: 'True', reason: 'Test'}]}}",
)  # fmt: skip


def _create_policy(plane: ControlPlane, name: str, resource: str, condition: str, mutation: str) -> None:
    """Create a MutatingAdmissionPolicy for created objects, and its binding."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]}
    spec = {
        "failurePolicy": "Fail", "reinvocationPolicy": "IfNeeded", "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "condition", "expression": condition}],
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": mutation}}],
    }  # fmt: skip
    for kind, plural, content in (
        ("MutatingAdmissionPolicy", "mutatingadmissionpolicies", spec),
        ("MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings", {"policyName": name}),
    ):
        body = {"apiVersion": _ADMISSION, "kind": kind, "metadata": {"name": name}, "spec": content}
        plane.call("POST", f"/apis/{_ADMISSION}/{plural}", body)
