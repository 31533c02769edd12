"""Objects of a benchmark on an API server: the check that it is empty, deletion by label, and a watch of pods."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from hetsched.adapters.kubernetes.api import Api, ApiFailure, Resource
from hetsched.adapters.kubernetes.reflector import Deleted, Reflector, Upserted
from hetsched.adapters.kubernetes.resources import NODES, PODS
from hetsched.contracts.errors import InputError

AT_ONCE = 16
LABEL = "hetsched.io/bench"
PATIENCE_SECONDS = 300.0
_POLL_SECONDS = 0.05
_MERGE = "application/merge-patch+json"


class _WatchedMeta(msgspec.Struct):
    name: str
    namespace: str = ""
    labels: dict[str, str] = {}
    finalizers: list[str] = []
    deleted: str | None = msgspec.field(default=None, name="deletionTimestamp")


class _WatchedObject(msgspec.Struct):
    metadata: _WatchedMeta


class _WatchedSpec(msgspec.Struct):
    node: str = msgspec.field(default="", name="nodeName")


class _WatchedCondition(msgspec.Struct):
    type: str


class _WatchedStatus(msgspec.Struct):
    conditions: list[_WatchedCondition] = []


class _WatchedPod(msgspec.Struct):
    metadata: _WatchedMeta
    spec: _WatchedSpec
    status: _WatchedStatus = msgspec.field(default_factory=_WatchedStatus)


_object = msgspec.json.Decoder(_WatchedObject)
_pod = msgspec.json.Decoder(_WatchedPod)


def require_empty(api: Api) -> None:
    """Raises: InputError `ClusterInUse` if the API server has nodes; ApiFailure."""
    if api.list_all(NODES)[0]:
        raise InputError(
            "ClusterInUse", "the API server has nodes", hint="Use an empty API server, for example from `make kube-up`"
        )


def labelled_names(api: Api, resource: Resource) -> list[str]:
    """Return the names of the objects of a kind that have the benchmark's label. Raises: ApiFailure."""
    return [one.name for one in _listed(api, resource) if LABEL in one.labels]


def delete_labelled(api: Api, resource: Resource, *, all_in: Collection[str] = ()) -> None:
    """Delete the objects of a kind that have the benchmark's label or are in a namespace of `all_in`.

    Their finalizers are removed. The objects are deleted one by one: deleting a large collection would exceed the
    request timeout. Raises: ApiFailure.
    """

    def delete(meta: _WatchedMeta) -> None:
        path = resource.path(namespace=meta.namespace, name=meta.name)
        try:
            if meta.finalizers:
                api.send("PATCH", path, b'{"metadata":{"finalizers":null}}', content=_MERGE)
            api.send("DELETE", path, query={"gracePeriodSeconds": "0"})
        except ApiFailure as failure:
            if failure.status != 404:
                raise

    wanted = [one for one in _listed(api, resource) if LABEL in one.labels or one.namespace in all_in]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(delete, wanted))


def _listed(api: Api, resource: Resource) -> list[_WatchedMeta]:
    return [_object.decode(body).metadata for body in api.list_all(resource)[0]]


class PodWatch:
    """Watch of all pods, used in a `with` statement; keys are `namespace/name`.

    `bound` is the time (of the monotonic clock, in seconds) at which a watch first showed each pod with a node;
    `attempted` contains the pods that have a PodScheduled condition; `present` contains the pods that were not deleted.
    With `evict`, every bound pod whose deletion was requested is deleted at once, as a kubelet does after the
    containers have stopped.
    """

    def __init__(self, api: Api, *, evict: bool = False) -> None:
        self.bound: dict[str, float] = {}
        self.attempted: set[str] = set()
        self.present: dict[str, None] = {}
        self._api = api
        self._evict = evict
        self._evicted: set[str] = set()
        self._kubelet = ThreadPoolExecutor(AT_ONCE)
        self._ended = threading.Event()
        self._more = threading.Condition()
        self._reflector = Reflector(api, PODS, sleep=lambda s: None, ended=self._ended.is_set)

    def __enter__(self) -> PodWatch:
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._kubelet.shutdown(cancel_futures=True)

    def wait_for_count(self, count: int) -> None:
        """Wait until `count` pods are bound, or until no pod was bound for `PATIENCE_SECONDS`."""
        with self._more:
            while len(self.bound) < count and self._more.wait(PATIENCE_SECONDS):
                pass

    def wait_for(
        self,
        keys: Iterable[str],
        *,
        attempted: bool = False,
        patience: float = PATIENCE_SECONDS,
        ended: Callable[[], bool] = lambda: False,
    ) -> set[str]:
        """Wait until these pods are bound, or bound or attempted; return the remaining ones.

        The wait ends when none of them was added for `patience` seconds, or when `ended()` is true.
        """
        missing, last = set(keys), time.monotonic()
        while True:
            found = {key for key in missing if key in self.bound or (attempted and key in self.attempted)}
            missing -= found
            now = time.monotonic()
            last = now if found else last
            if not missing or now - last > patience or ended():
                return missing
            time.sleep(_POLL_SECONDS)

    def _read(self) -> None:
        for event in self._reflector.events():
            if isinstance(event, Deleted):
                self.present.pop(event.key, None)
            elif isinstance(event, Upserted):
                self._record(event.key, _pod.decode(event.body))

    def _record(self, key: str, pod: _WatchedPod) -> None:
        self.present[key] = None
        if any(condition.type == "PodScheduled" for condition in pod.status.conditions):
            self.attempted.add(key)
        if not pod.spec.node:
            return
        if key not in self.bound:
            with self._more:
                self.bound[key] = time.monotonic()
                self._more.notify_all()
        if self._evict and pod.metadata.deleted and key not in self._evicted and not self._ended.is_set():
            self._evicted.add(key)
            with contextlib.suppress(RuntimeError):  # the watch ended in between
                self._kubelet.submit(self._delete, pod.metadata)

    def _delete(self, meta: _WatchedMeta) -> None:
        """Delete a terminating pod; failures are ignored, because the benchmark deletes the remaining pods."""
        with contextlib.suppress(ApiFailure):
            path = PODS.path(namespace=meta.namespace, name=meta.name)
            self._api.send("DELETE", path, query={"gracePeriodSeconds": "0"})
