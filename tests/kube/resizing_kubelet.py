"""A kubelet for every node that admits pods and in-place resizes only if the CPUs of their node suffice.

A resize that does not fit at the moment is deferred and tried again when CPUs become free. Some nodes refuse all
growth, with the reason Infeasible (as a kubelet with a configuration that excludes resizes) or Deferred. The condition
is removed if the pod requests the allocated amount again.
Source: KEP-1287; `handlePodResourcesResize` of kubernetes pkg/kubelet/allocation (1.37).
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from typing import Any

from hetsched.adapters.kubernetes.api import Api
from tests.kube.kubelet import BoundPod, Kubelet
from tests.kube.pod_history import millis

_RESIZE = "PodResizePending"


class ResizingKubelet(Kubelet):
    """The kubelets of all nodes. `capacity` contains the thousandths of CPUs of each node, `refusals` the reasons of
    nodes that refuse growth.
    """

    def __init__(self, api: Api, capacity: dict[str, int], refusals: dict[str, str]) -> None:
        super().__init__(api)
        self.resizes: Counter[str] = Counter()  # by result
        self._capacity, self._refusals, self._room = capacity, refusals, threading.Lock()
        self._pending: dict[str, tuple[str, int]] = {}  # reason and requested amount by UID
        self._wanted: dict[str, int] = {}  # by UID, as in the spec
        self._allocated: dict[str, tuple[BoundPod, int]] = {}  # by UID

    def _see_pod(self, body: bytes) -> None:
        pod = json.loads(body)
        if pod["spec"].get("nodeName"):
            uid = pod["metadata"]["uid"]
            wanted = millis(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
            self._wanted[uid] = wanted
            known = self._allocated.get(uid)
            changes = known is not None and (known[1] != wanted or uid in self._pending)
            if changes and "deletionTimestamp" not in pod["metadata"]:
                self._do(lambda: self._resize(uid))
        super()._see_pod(body)

    def _admit(self, pod: BoundPod) -> None:
        with self._room:
            is_admitted = self._allocate(pod, self._wanted[pod.uid])
        if not is_admitted:
            self.refused.append((pod.key, pod.node))
            self._set_status(pod, {"phase": "Failed", "reason": "OutOfcpu", "message": "a test"})
            return
        super()._admit(pod)

    def _allocate(self, pod: BoundPod, cpu: int) -> bool:
        """Allocate an amount if the CPUs of the node suffice; the caller has the lock."""
        used = sum(amount for other, amount in self._allocated.values() if other.node == pod.node)
        used -= self._allocated.get(pod.uid, (pod, 0))[1]
        if used + cpu > self._capacity[pod.node]:
            return False
        self._allocated[pod.uid] = (pod, cpu)
        return True

    def _resize(self, uid: str) -> None:
        """Grant or refuse the requested amount of a pod, and report the result."""
        with self._room:
            known = self._allocated.get(uid)
            if known is None:
                return
            pod, before = known
            wanted, pending = self._wanted[uid], self._pending.pop(uid, None)
            result = self._result(pod, before, wanted)
            if result != "actuated":
                self._pending[uid] = result, wanted
            if self._pending.get(uid) != pending or self._allocated[uid][1] != before:
                self.resizes[result] += 1
        if result == "actuated" and wanted < before:
            self._retry(pod.node)
        condition: dict[str, Any] = {"type": _RESIZE, "$patch": "delete"}
        if result != "actuated":
            condition = {"type": _RESIZE, "status": "True", "reason": result}
        self._set_status(pod, {"conditions": [condition], "containerStatuses": [{"name": "main"}]})

    def _result(self, pod: BoundPod, before: int, wanted: int) -> str:
        """Allocate the amount if the node grants it; return the result."""
        if wanted > before and pod.node in self._refusals:
            return self._refusals[pod.node]
        return "actuated" if self._allocate(pod, wanted) else "Deferred"

    def _retry(self, node: str) -> None:
        for uid, (pod, cpu) in list(self._allocated.items()):
            if pod.node == node and self._wanted[uid] != cpu:
                self._do(lambda uid=uid: self._resize(uid))  # type: ignore[misc]

    def _set_status(self, pod: BoundPod, status: dict[str, Any]) -> None:
        known = self._allocated.get(pod.uid)
        for report in status.get("containerStatuses", ()) if known else ():
            assert known
            have = {"cpu": f"{known[1]}m"}
            report |= {"allocatedResources": have, "resources": {"requests": have}}
            report |= {"image": "busybox", "imageID": "x", "ready": True, "restartCount": 0}
        super()._set_status(pod, status)

    def _finish_deletion(self, meta: Any, *, runs: bool) -> None:
        super()._finish_deletion(meta, runs=runs)
        with self._room:
            known = self._allocated.pop(meta.uid, None)
            self._pending.pop(meta.uid, None)
        if known is not None:
            self._retry(known[0].node)
