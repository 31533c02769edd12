"""A kubelet for every node that admits pods and in-place resizes only if the CPUs of their node suffice.

A resize that does not fit at the moment is deferred and tried again when CPUs become free; a resize to more than the
node has is infeasible. Source: KEP-1287, in-place update of pod resources.
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
    """The kubelets of all nodes; `capacity` contains the thousandths of CPUs of each node."""

    def __init__(self, api: Api, capacity: dict[str, int]) -> None:
        super().__init__(api)
        self.resizes: Counter[str] = Counter()  # by result
        self._capacity, self._room = capacity, threading.Lock()
        self._wanted: dict[str, int] = {}  # by UID, as in the spec
        self._allocated: dict[str, tuple[BoundPod, int]] = {}  # by UID

    def _see_pod(self, body: bytes) -> None:
        pod = json.loads(body)
        if pod["spec"].get("nodeName"):
            uid = pod["metadata"]["uid"]
            wanted = millis(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
            self._wanted[uid] = wanted
            known = self._allocated.get(uid)
            if known is not None and known[1] != wanted and "deletionTimestamp" not in pod["metadata"]:
                self._do(lambda: self._resize(uid))
        super()._see_pod(body)

    def _admit(self, pod: BoundPod) -> None:
        if not self._allocate(pod, self._wanted[pod.uid]):
            self.refused.append((pod.key, pod.node))
            self._set_status(pod, {"phase": "Failed", "reason": "OutOfcpu", "message": "a test"})
            return
        super()._admit(pod)

    def _allocate(self, pod: BoundPod, cpu: int) -> bool:
        with self._room:
            used = sum(amount for other, amount in self._allocated.values() if other.node == pod.node)
            used -= self._allocated.get(pod.uid, (pod, 0))[1]
            if used + cpu > self._capacity[pod.node]:
                return False
            self._allocated[pod.uid] = (pod, cpu)
            return True

    def _resize(self, uid: str) -> None:
        known = self._allocated.get(uid)
        if known is None or known[1] == self._wanted[uid]:
            return
        pod, before = known
        wanted = self._wanted[uid]
        condition: dict[str, Any] = {"type": _RESIZE, "$patch": "delete"}
        result = "actuated"
        if not self._allocate(pod, wanted):
            result = "Infeasible" if wanted > self._capacity[pod.node] else "Deferred"
            condition = {"type": _RESIZE, "status": "True", "reason": result}
        self.resizes[result] += 1
        self._set_status(pod, {"conditions": [condition], "containerStatuses": [{"name": "main"}]})
        if result == "actuated" and wanted < before:
            self._retry(pod.node)

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
        known = self._allocated.pop(meta.uid, None)
        if known is not None:
            self._retry(known[0].node)
