"""A kubelet for every node of a test control plane: it keeps nodes alive, and runs, ends or rejects bound pods by a
rule.

An API server without kubelets binds pods to nodes, but no pod ever runs. This module uses one watch of nodes and one of
pods for the whole fleet; a few threads patch status as kubelets do, with the UID as a precondition. The rule is called
once for each pod, when the pod is first seen on a node. A bound pod that is being deleted is removed immediately. New
nodes get a Ready condition, and every node gets its Lease every `beat_seconds`.

    with Kubelet(api) as kubelet:                                   # all pods run indefinitely
    with Kubelet(api, lambda pod: ends(seconds=1)):                 # all pods succeed after a second
    with Kubelet(api, lambda pod: refuses("TopologyAffinityError") if pod.node == "n1" else RUNS) as kubelet:
        kubelet.refused                                             # [(pod, node)…] in order of arrival
"""

from __future__ import annotations

import heapq
import itertools
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Self

import msgspec

from hetsched.adapters.kubernetes.api import Api, ApiFailure, Resource
from hetsched.adapters.kubernetes.reflector import Reflector, Upserted
from hetsched.adapters.kubernetes.resources import LEASES, NODES, PODS

LEASE_SECONDS = 40
_STRATEGIC = "application/strategic-merge-patch+json"
_TICK_SECONDS = 0.05


class PodOutcome(msgspec.Struct, frozen=True):
    """The outcome of a pod: it runs for `seconds` (None: indefinitely) unless it is rejected or its containers wait."""

    phase: str = "Running"
    reason: str = ""
    message: str = ""
    waiting: bool = False
    exit_code: int = 0
    seconds: float | None = None


RUNS = PodOutcome()


def ends(exit_code: int = 0, *, reason: str = "", seconds: float = 0.0) -> PodOutcome:
    """Return the outcome of a pod whose containers run and exit with this code and `reason`."""
    phase = "Failed" if exit_code else "Succeeded"
    return PodOutcome(phase, reason or ("Error" if exit_code else "Completed"), exit_code=exit_code, seconds=seconds)


def refuses(reason: str, message: str = "") -> PodOutcome:
    """Return the outcome of a pod that the kubelet does not admit."""
    return PodOutcome("Failed", reason, message)


def waits(reason: str, message: str = "") -> PodOutcome:
    """Return the outcome of a pod whose containers cannot be started, as with ImagePullBackOff."""
    return PodOutcome("Pending", reason, message, waiting=True)


class _Container(msgspec.Struct):
    name: str
    image: str = ""


class _Spec(msgspec.Struct):
    node: str = msgspec.field(default="", name="nodeName")
    containers: list[_Container] = []


class _Meta(msgspec.Struct):
    name: str
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    deleted: str | None = msgspec.field(default=None, name="deletionTimestamp")


class _Status(msgspec.Struct):
    phase: str = ""


class _Pod(msgspec.Struct):
    metadata: _Meta
    spec: _Spec
    status: _Status = msgspec.field(default_factory=_Status)


_pod = msgspec.json.Decoder(_Pod)


class BoundPod(msgspec.Struct, frozen=True):
    """A pod on its node, as passed to a rule."""

    namespace: str
    name: str
    uid: str
    node: str
    labels: dict[str, str]
    annotations: dict[str, str]
    containers: tuple[tuple[str, str], ...]  # (name, image)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class Kubelet:
    """The kubelets of all nodes, used in a `with` statement. The lists only grow, and any thread may read them."""

    def __init__(
        self, api: Api, rule: Callable[[BoundPod], PodOutcome] = lambda _: RUNS, *, beat_seconds: float = 10.0
    ) -> None:
        self.rule = rule
        self.started: list[tuple[str, str]] = []  # (pod, node) of started pods
        self.refused: list[tuple[str, str]] = []  # (pod, node) of rejected pods
        self._api = api
        self._beat_seconds = beat_seconds
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._pool = ThreadPoolExecutor(4, "kubelet")
        self._taken: set[str] = set()  # UIDs of pods whose outcome is known
        self._running: dict[str, BoundPod] = {}
        self._nodes: set[str] = set()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._lock = threading.Lock()
        self._count = itertools.count()

    def __enter__(self) -> Self:
        jobs = ((self._follow, (NODES, self._see_node)), (self._follow, (PODS, self._see_pod)), (self._tick, ()))
        self._threads = [threading.Thread(target=job, args=arguments, daemon=True) for job, arguments in jobs]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the threads; an idle watch ends when its connection is closed."""
        self._ended.set()
        self._threads[-1].join()
        self._pool.shutdown(cancel_futures=True)

    # -- watching ------------------------------------------------------------------------------------------------------

    def _follow(self, resource: Resource, see: Callable[[bytes], None]) -> None:
        reflector = Reflector(
            self._api, resource, sleep=lambda seconds: (self._ended.wait(seconds), None)[1], ended=self._ended.is_set
        )
        for event in reflector.events():
            if self._ended.is_set():
                return
            if isinstance(event, Upserted):
                see(event.body)

    def _see_node(self, body: bytes) -> None:
        name = json.loads(body)["metadata"]["name"]
        if name not in self._nodes:
            self._nodes.add(name)
            self._do(lambda: self._register(name))

    def _see_pod(self, body: bytes) -> None:
        seen = _pod.decode(body)
        meta, spec = seen.metadata, seen.spec
        if not spec.node:
            return
        if meta.deleted is not None:
            self._do(lambda: self._finish_deletion(meta, runs=seen.status.phase == "Running"))
        elif meta.uid not in self._taken and seen.status.phase == "Pending":
            self._taken.add(meta.uid)
            containers = tuple((container.name, container.image) for container in spec.containers)
            pod = BoundPod(
                meta.namespace, meta.name, meta.uid, spec.node, meta.labels, meta.annotations, containers
            )  # fmt: skip
            self._do(lambda: self._admit(pod))

    # -- writing -------------------------------------------------------------------------------------------------------

    def _do(self, job: Callable[[], None]) -> None:
        if not self._ended.is_set():
            self._pool.submit(self._tried, job)

    def _tried(self, job: Callable[[], None]) -> None:
        """Run a job; ignore deleted and replaced objects, and retry after other failures."""
        try:
            job()
        except ApiFailure as failure:
            if failure.status not in (404, 409):
                self._after(1.0, job)

    def _after(self, seconds: float, job: Callable[[], None]) -> None:
        with self._lock:
            heapq.heappush(self._later, (time.monotonic() + seconds, next(self._count), job))

    def _tick(self) -> None:
        beat_at = time.monotonic() + self._beat_seconds
        while not self._ended.wait(_TICK_SECONDS):
            now = time.monotonic()
            with self._lock:
                due = []
                while self._later and self._later[0][0] <= now:
                    due.append(heapq.heappop(self._later)[2])
            for job in due:
                self._do(job)
            if now >= beat_at:
                beat_at = now + self._beat_seconds
                for name in list(self._nodes):
                    self._do(lambda name=name: self._renew(name))  # type: ignore[misc]

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _register(self, name: str) -> None:
        now = _now()
        ready = {
            "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "a test runs this node",
            "lastHeartbeatTime": now,
        }  # fmt: skip
        self._patch(NODES, name, "", {"status": {"conditions": [ready]}})
        lease = {
            "metadata": {"name": name},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": _now(micro=True)},
        }
        self._api.send("POST", LEASES.path(namespace="kube-node-lease"), json.dumps(lease).encode())

    def _renew(self, name: str) -> None:
        body = json.dumps({"spec": {"holderIdentity": name, "renewTime": _now(micro=True)}}).encode()
        path = LEASES.path(namespace="kube-node-lease", name=name)
        self._api.send("PATCH", path, body, content="application/merge-patch+json")

    # -- pods ----------------------------------------------------------------------------------------------------------

    def _admit(self, pod: BoundPod) -> None:
        outcome = self.rule(pod)
        if outcome.waiting:
            state = {"waiting": {"reason": outcome.reason, "message": outcome.message}}
            self._set_status(pod, {"phase": "Pending", **_containers(pod, state, ready=False)})
        elif outcome.phase == "Failed" and outcome.seconds is None:
            self.refused.append((pod.key, pod.node))
            self._set_status(
                pod, {"phase": "Failed", "reason": outcome.reason, "message": outcome.message, "startTime": _now()}
            )
        else:
            self.started.append((pod.key, pod.node))
            running = {"running": {"startedAt": _now()}}
            ready = [{"type": "Ready", "status": "True"}]
            status = {"phase": "Running", "startTime": _now(), "conditions": ready}
            self._running[pod.key] = pod
            self._set_status(pod, {**status, **_containers(pod, running, ready=True)})
            if outcome.seconds is not None:
                self._after(outcome.seconds, lambda: self._end(pod, outcome))

    def end(self, key: str, outcome: PodOutcome | None = None) -> None:
        """End a running pod now, successfully by default."""
        self._end(self._running[key], outcome or ends())

    def _end(self, pod: BoundPod, outcome: PodOutcome) -> None:
        over = {
            "exitCode": outcome.exit_code,
            "reason": outcome.reason,
            "message": outcome.message,
            "finishedAt": _now(),
        }
        self._set_status(
            pod, {"phase": outcome.phase, **_containers(pod, {"terminated": over, "running": None}, ready=False)}
        )

    def _finish_deletion(self, meta: _Meta, *, runs: bool) -> None:
        """Remove a pod that is being deleted; report the end of its containers first, as kubelets do since 1.27."""
        if runs:
            over = {"metadata": {"uid": meta.uid}, "status": {"phase": "Failed"}}
            self._patch(PODS, meta.name, meta.namespace, over)
        options = json.dumps({"gracePeriodSeconds": 0, "preconditions": {"uid": meta.uid}}).encode()
        self._api.send("DELETE", PODS.path(namespace=meta.namespace, name=meta.name), options)

    def _set_status(self, pod: BoundPod, status: dict[str, Any]) -> None:
        self._patch(PODS, pod.name, pod.namespace, {"metadata": {"uid": pod.uid}, "status": status})

    def _patch(self, resource: Resource, name: str, namespace: str, body: dict[str, Any]) -> None:
        path = resource.path(namespace=namespace, name=name, part="status")
        self._api.send("PATCH", path, json.dumps(body).encode(), content=_STRATEGIC)


def _containers(pod: BoundPod, state: dict[str, Any], *, ready: bool) -> dict[str, Any]:
    return {
        "containerStatuses": [
            {"name": name, "image": image, "imageID": "", "ready": ready, "restartCount": 0, "state": state}
            for name, image in pod.containers
        ]
    }


def _now(*, micro: bool = False) -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")
