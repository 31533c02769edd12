"""Kubelets for Kubernetes' e2e tests: extended resources, exit codes, `preStop` and the addresses of pods.

The base class runs every pod. The e2e tests also need that a kubelet copies extended resources from the capacity of a
node to its allocatable resources, ends containers whose command ends, waits for `preStop.sleep`, and reports all
conditions and an address of a running pod.
"""

from __future__ import annotations

import json
import re
from typing import Any

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.resources import NODES
from tests.kube.kubelet import RUNS, BoundPod, Kubelet, PodOutcome, ends

_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
_NODE_CONDITIONS = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
_END_SECONDS = 1.0


class UpstreamKubelet(Kubelet):
    """The kubelets of all nodes of a cluster for e2e tests."""

    def __init__(self, api: Api) -> None:
        super().__init__(api, self._outcome)
        self._pods: dict[str, dict[str, Any]] = {}

    def _see_node(self, body: bytes) -> None:
        super()._see_node(body)
        node = json.loads(body)
        status = node["status"]
        capacity, allocatable = (
            {name: amount for name, amount in status.get(field, {}).items() if "/" in name}
            for field in ("capacity", "allocatable")
        )
        if capacity != allocatable:
            removed = dict.fromkeys(allocatable.keys() - capacity.keys())
            change = {"status": {"allocatable": {**removed, **capacity}}}
            self._do(lambda: self._patch(NODES, node["metadata"]["name"], "", change))

    def _register(self, name: str) -> None:
        conditions = [{"type": kind, "status": "False", "reason": "Test"} for kind in _NODE_CONDITIONS]
        self._patch(NODES, name, "", {"status": {"conditions": conditions}})
        super()._register(name)

    def _see_pod(self, body: bytes) -> None:
        pod = json.loads(body)
        if "nodeName" in pod["spec"]:
            self._pods[pod["metadata"]["uid"]] = pod
        super()._see_pod(body)

    def _outcome(self, bound: BoundPod) -> PodOutcome:
        """End a pod whose containers all have a command that ends."""
        spec = self._pods[bound.uid]["spec"]
        codes = [_exit_code(container) for container in spec["containers"]]
        if spec.get("restartPolicy", "Always") == "Always" or None in codes:
            return RUNS
        return ends(max(code or 0 for code in codes), seconds=_END_SECONDS)

    def _finish_deletion(self, meta: Any, *, runs: bool) -> None:
        """Remove a pod after the sleep of its `preStop` hooks."""
        spec = self._pods.get(meta.uid, {}).get("spec", {"containers": []})
        hooks = [container.get("lifecycle", {}).get("preStop", {}) for container in spec["containers"]]
        seconds = max((hook.get("sleep", {}).get("seconds", 0) for hook in hooks), default=0)
        if seconds and runs:
            self._after(seconds, lambda: super(UpstreamKubelet, self)._finish_deletion(meta, runs=runs))
        else:
            super()._finish_deletion(meta, runs=runs)

    def _set_status(self, pod: BoundPod, status: dict[str, Any]) -> None:
        if status.get("phase") == "Running":
            number = sum(pod.uid.encode()) % 250 + 2
            address = f"10.1.0.{number}"
            conditions = [{"type": kind, "status": "True"} for kind in _CONDITIONS]
            status |= {"conditions": conditions, "hostIP": "10.2.0.1", "podIP": address, "podIPs": [{"ip": address}]}
        elif status.get("phase") in ("Succeeded", "Failed"):
            status |= {"conditions": [{"type": kind, "status": "False"} for kind in ("Ready", "ContainersReady")]}
        super()._set_status(pod, status)


def _exit_code(container: dict[str, Any]) -> int | None:
    """Return the exit code of a container whose command is `true`, `false` or ends with `exit N`."""
    words = " ".join([*container.get("command", ()), *container.get("args", ())]).strip()
    if found := re.search(r"exit (\d+)$", words):
        return int(found[1])
    if found := re.search(r"(?:^|/)(true|false)$", words):
        return int(found[1] == "false")
    return None
