"""Bindings that an informer process writes in parallel, until their results are stored.

A pod without volumes and devices needs one call, which the informer thread itself sends and receives (`ParallelCalls`).
Threads make all other calls: those of other pods, those that open connections, and those that follow a failure.
Binding results, received as a response or as a watch event, are written for many pods in one transaction. A watch event
that differs from the pod's previous event only in the node is the confirmation of a binding. It is skipped, and is
processed after all if the row is not bound to that node once the result is written. If the API server has copied labels
of the node to the pod, the event is processed after the result is written, together with the events of other pods.
A binding is written only while the lease of its decision and the Lease object in the cluster are valid and
`binding_cycle.WRITE_WITHIN` has not passed. Bindings that were not started by then are left to the workers.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import msgspec

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.parallel_calls import ParallelCalls
from hetsched.adapters.kubernetes.pods.binding import (
    BindingOutcome,
    BindingRequest,
    BindingResult,
    binding_call,
    unassigned,
)
from hetsched.adapters.kubernetes.reflector import Deleted, Upserted
from hetsched.contracts.objects.allocation import EMPTY
from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.contracts.objects.workload import PodSpec, copied_labels
from hetsched.inventory.models import Cluster
from hetsched.placement.actions import Conflict, confirm
from hetsched.placement.in_place import fingerprint
from hetsched.placement.lifecycle import HOLDING, State
from hetsched.placement.models import Pod
from hetsched.placement.scheduler_cache import cache_of
from hetsched.placement.scheduling_result import Result

from . import binding_cycle
from .leases import Lease

# Accepted bindings are written in small transactions while no event waits, so that they delay an arriving pod by a few
# milliseconds only. Under load all of them are written every CONFIRM_SECONDS, and while pods of a backlog wait for
# their decisions or bindings every BACKLOG_SECONDS. Workers claim a pod that is *binding* for
# `binding_cycle.CLAIM_AFTER`, so a backlog no longer delays the bindings when the oldest one began LATE_SECONDS ago.
CONFIRM_SECONDS, BACKLOG_SECONDS, LATE_SECONDS = 0.5, 5.0, 8.0
CONFIRM_AT_ONCE = 200
CONFIRM_IDLE = 25
RETAIN_SECONDS, FORGET_SECONDS = 30.0, 1.0
DRAIN_SECONDS, DRAIN_STEP_SECONDS = 10.0, 0.01
_ON_ITS_NODE = [state.value for state in HOLDING if state is not State.PLACED]


class _InFlight:
    """A binding in flight: its request, its start time, and whether the API server accepted it and its row was written.

    `spec` is the reserved pod, and `labels` contains those of its labels that the API server copies from a node.
    `has_other_labels` is True if the watch confirmation has other values of these labels.
    """

    __slots__ = ("accepted", "has_other_labels", "labels", "since", "spec", "to", "written")

    def __init__(self, to: BindingRequest, since: float, spec: PodSpec) -> None:
        self.to = to
        self.since = since
        self.spec = spec
        self.labels = copied_labels(spec.labels)
        self.accepted = self.written = self.has_other_labels = False


class _Meta(msgspec.Struct):
    uid: str = ""
    labels: dict[str, str] | None = None
    deleted: str | None = msgspec.field(default=None, name="deletionTimestamp")


class _Spec(msgspec.Struct):
    node: str = msgspec.field(default="", name="nodeName")


class _Status(msgspec.Struct):
    phase: str = ""
    reason: str = ""
    containers: msgspec.Raw | None = msgspec.field(default=None, name="containerStatuses")
    before: msgspec.Raw | None = msgspec.field(default=None, name="initContainerStatuses")


class _Confirmation(msgspec.Struct):
    """The fields of a pod event that are read to detect the watch confirmation of a binding."""

    metadata: _Meta
    spec: _Spec
    status: _Status


_confirmation = msgspec.json.Decoder(_Confirmation)


class BindingsInFlight:
    """Bindings of one cluster; `may_bind` returns True while a lease allows writes.

    `threads` make the calls that are not parallel calls. `count` is the number of bindings without a result. `unproven`
    is True if the API server accepts bindings with wrong uids. `copies_labels` is False if the API server was last seen
    to copy no labels of the node to a pod.
    """

    def __init__(
        self, cluster: Cluster, api: Api, threads: ThreadPoolExecutor, may_bind: Callable[[Lease], bool]
    ) -> None:
        self.count = 0
        self.unproven = False
        self.copies_labels = True  # the default since Kubernetes 1.35
        self._cluster = cluster
        self._api = api
        self._may_bind = may_bind
        self._threads = threads
        self._closing = False
        self._confirmed_at = self._forgotten_at = float("-inf")
        self._calls = ParallelCalls(api)
        self._unsent: deque[tuple[_InFlight, Callable[[], bool]]] = deque()
        self._futures: set[Future[BindingOutcome]] = set()
        self._results: queue.SimpleQueue[BindingOutcome] = queue.SimpleQueue()
        # Skipped confirmations by pod key until the binding is written, and the keys that must be processed after all.
        self._skipped: dict[str, ObservedPod | Upserted] = {}
        self._unprocessed: list[str] = []
        self._by_uid: dict[str, _InFlight] = {}
        self._by_pod: dict[int, _InFlight] = {}
        self._accepted: list[int] = []

    def start(self, lease: Lease, placed: Sequence[Result]) -> None:
        """Bind the pods that were placed under `lease`."""
        now = time.monotonic()
        for result in placed:
            waiting = result.waiting
            allocation = result.allocation or EMPTY
            to = binding_cycle.binding_request(
                self._cluster.name, waiting.pod_id, waiting.uid, waiting.spec, result.node_name, allocation, lease.epoch
            )
            binding = _InFlight(to, now, result.reserved_spec or waiting.spec)
            self._by_uid[to.uid] = self._by_pod[to.pod_id] = binding
            self.count += 1
            is_ours = partial(self._is_ours, lease, now + binding_cycle.WRITE_WITHIN.total_seconds())
            self._unsent.append((binding, is_ours))
        self.advance()

    @property
    def has_unsent(self) -> bool:
        """Return True if bindings wait for a connection."""
        return bool(self._unsent)

    def advance(self, seconds: float = 0.0) -> None:
        """Send waiting bindings, and receive responses, for at most `seconds` until the first one arrives.

        Bindings are sent before the responses are read, which takes time and rarely makes room.
        """
        self._send_waiting()
        self._calls.advance(seconds)
        if self._unsent and self._send_waiting():
            self._calls.advance()

    def _send_waiting(self) -> bool:
        """Add the waiting bindings for which there is room to the parallel calls; return whether there were any."""
        before = len(self._unsent)
        while self._unsent and self._send(*self._unsent[0]):
            self._unsent.popleft()
        return len(self._unsent) < before

    def close(self) -> None:
        """Wait for bindings in flight and write their results; workers claim the remaining bindings."""
        until = time.monotonic() + DRAIN_SECONDS
        try:
            while (self._unsent or self._calls.in_flight or self._futures) and time.monotonic() < until:
                self.advance(DRAIN_STEP_SECONDS)
        finally:
            self._closing = True
            self._calls.close()
            self._threads.shutdown(wait=False, cancel_futures=True)
        self.take_results()
        self._confirm(len(self._accepted))

    def take_results(self) -> None:
        """Collect binding results; write results other than *bound* immediately, as a worker would."""
        others: list[BindingOutcome] = []
        while not self._results.empty():
            outcome = self._results.get()
            self.count -= 1
            binding = self._by_pod.get(outcome.pod_id)
            if outcome.result is BindingResult.BOUND and binding is not None:
                self._accept(binding)
                continue
            others.append(outcome)
            self.unproven = self.unproven or outcome.result is BindingResult.UNPROVEN
            if binding is not None and not binding.accepted:
                self._drop(binding)
        if others:
            binding_cycle.record_results(self._cluster, others)

    def confirm_due(self, now: float, *, is_idle: bool, has_backlog: bool = False) -> bool:
        """Write accepted bindings: at most `CONFIRM_AT_ONCE` if it is time or there are that many, a few while idle.

        `is_idle` is True if no event and no arriving or due pod waits, `has_backlog` if pods wait for their decisions.
        Return whether bindings were written. The next call writes the bindings above the limit.
        """
        if not self._accepted:
            return False
        may_wait = has_backlog and not self._is_late(now)
        is_time = now - self._confirmed_at > (BACKLOG_SECONDS if may_wait else CONFIRM_SECONDS)
        if is_time or (len(self._accepted) >= CONFIRM_AT_ONCE and not may_wait):
            is_written = self._confirm(CONFIRM_AT_ONCE)
        elif is_idle and len(self._accepted) >= CONFIRM_IDLE:
            is_written = self._confirm(CONFIRM_IDLE)
        else:
            return False
        if not (is_time and self._accepted):
            self._confirmed_at = now
        if now - self._forgotten_at > FORGET_SECONDS:
            self._forgotten_at = now
            self._forget(now - RETAIN_SECONDS)
        return is_written

    def _is_late(self, now: float) -> bool:
        """Return True if the binding that was accepted first began long ago."""
        first = self._by_pod.get(self._accepted[0])
        return first is not None and now - first.since > LATE_SECONDS

    # -- watch confirmations -------------------------------------------------------------------------------------------

    def is_confirmation(self, event: Upserted | Deleted) -> bool:
        """Return True if an event only confirms a binding of this process, and record the binding."""
        self._skipped.pop(event.key, None)
        if isinstance(event, Deleted) or not self._by_uid:
            return False
        try:
            pod = _confirmation.decode(event.body)
        except msgspec.DecodeError:
            return False
        binding, status = self._by_uid.get(pod.metadata.uid), pod.status
        if binding is None or pod.spec.node != binding.to.node or pod.metadata.deleted is not None:
            return False
        if status.containers or status.before or status.reason or status.phase not in ("", "Pending"):
            return False
        self._accept(binding)
        labels = copied_labels(pod.metadata.labels or {})
        binding.has_other_labels = labels != binding.labels
        if binding.has_other_labels:
            self.copies_labels = bool(labels)
        if not binding.written:
            self._skipped[event.key] = event
        elif binding.has_other_labels:
            self._skipped[event.key] = event
            self._unprocessed.append(event.key)
        return True

    @property
    def has_unprocessed(self) -> bool:
        """Return True if skipped confirmations must be processed after all."""
        return bool(self._unprocessed)

    def take_unprocessed(self) -> list[Upserted]:
        """Return and remove the raw events that were skipped as confirmations and must be processed after all."""
        unread = [self._skipped.get(key) for key in self._unprocessed]
        found = [event for event in unread if isinstance(event, Upserted)]
        for event in found:
            del self._skipped[event.key]
        return found

    def remove_confirmations(self, changes: Changes) -> None:
        """Remove watch confirmations of this process's bindings from `changes` and record them."""
        kept = []
        for key in changes.pods_gone:
            self._skipped.pop(key, None)
        for pod in changes.pods:
            self._skipped.pop(pod.key, None)
            if not self._confirms(pod):
                kept.append(pod)
        unprocessed, self._unprocessed = self._unprocessed, []
        again = [self._skipped.pop(key) for key in unprocessed if key in self._skipped]
        kept += [pod for pod in again if isinstance(pod, ObservedPod)]
        changes.pods = kept

    def _confirms(self, pod: ObservedPod) -> bool:
        binding = self._by_uid.get(pod.uid)
        if binding is None or pod.node_name != binding.to.node:
            return False
        if pod.ended or pod.deleting or pod.wait or pod.refusal or pod.devices or pod.phase not in ("", "Pending"):
            return False
        if pod.spec is None or fingerprint(pod.spec) != fingerprint(binding.spec):
            return False
        self._accept(binding)
        if not binding.written:
            self._skipped[pod.key] = pod
        return True

    # -- results -------------------------------------------------------------------------------------------------------

    def _is_ours(self, lease: Lease, until: float) -> bool:
        """Return True if a binding may be written: before `until`, under `lease`, and not while closing.

        Also called from binder threads.
        """
        return not self._closing and time.monotonic() < until and self._may_bind(lease)

    def _send(self, binding: _InFlight, is_ours: Callable[[], bool]) -> bool:
        """Add a binding to the parallel calls, or leave it to a thread; return False if it must wait."""
        if not is_ours():
            self._results.put(unassigned(binding.to))
            return True
        if binding_cycle.needs_one_call(self._api, binding.to):
            # Busy threads open connections, which are used next, or wait until a busy API server accepts calls again.
            if len(self._futures) >= binding_cycle.AT_ONCE or not self._calls.has_room:
                return False
            done = partial(self._done, binding, is_ours, time.monotonic())
            with suppress(Exception):  # the thread finds and reports the same error
                if self._calls.start(*binding_call(binding.to), done):
                    return True
        self._submit(binding.to, is_ours)
        return True

    def _submit(self, to: BindingRequest, is_ours: Callable[[], bool], first_failure: ApiFailure | None = None) -> None:
        future = self._threads.submit(
            binding_cycle.write, self._api, self._cluster.name, to, is_ours=is_ours, first_failure=first_failure
        )
        self._futures.add(future)
        future.add_done_callback(partial(self._record_thread, to))

    def _done(
        self, binding: _InFlight, is_ours: Callable[[], bool], sent_at: float, failure: ApiFailure | None
    ) -> None:
        """Record that the API server has accepted a binding; a thread handles a failure."""
        if failure is not None:
            self._submit(binding.to, is_ours, failure)
            return
        binding_cycle.note_time(self._cluster.name, time.monotonic() - sent_at, BindingResult.BOUND)
        self._results.put(BindingOutcome(binding.to.pod_id, BindingResult.BOUND))

    def _record_thread(self, to: BindingRequest, future: Future[BindingOutcome]) -> None:
        """Record the result of a thread; `close` waits for it until the future is removed."""
        if not future.cancelled():
            error = future.exception()
            result = BindingOutcome(to.pod_id, BindingResult.UNKNOWN, repr(error)) if error else future.result()
            self._results.put(result)
        self._futures.discard(future)

    def _accept(self, binding: _InFlight) -> None:
        if not binding.accepted:
            binding.accepted = True
            self._accepted.append(binding.to.pod_id)

    def _confirm(self, most: int) -> bool:
        """Write the first `most` accepted bindings to their rows; return False if another process moved a pod."""
        pods, self._accepted = self._accepted[:most], self._accepted[most:]
        if not pods:
            return False
        is_written = True
        try:
            cache_of(self._cluster.pk).mark_unchanged(confirm(self._cluster.pk, pods))
            bound_ids = set(pods)
        except Conflict:
            is_written = False
            binding_cycle.apply_while_binding(self._cluster, confirm, pods)
            bound_ids = set(Pod.objects.filter(pk__in=pods, state__in=_ON_ITS_NODE).values_list("id", flat=True))
        for binding in [self._by_pod[pod] for pod in pods if pod in self._by_pod]:
            key = f"{binding.to.namespace}/{binding.to.name}"
            binding.written = True
            if binding.to.pod_id in bound_ids and binding.has_other_labels:
                self._unprocessed.append(key)
            elif binding.to.pod_id in bound_ids:
                self._skipped.pop(key, None)
            else:
                self._drop(binding)
                self._unprocessed.append(key)
        return is_written

    def _forget(self, before: float) -> None:
        """Drop written bindings that started before this time; later confirmations are processed like other events."""
        for binding in [binding for binding in self._by_pod.values() if binding.since < before and binding.written]:
            self._drop(binding)

    def _drop(self, binding: _InFlight) -> None:
        self._by_pod.pop(binding.to.pod_id, None)
        if self._by_uid.get(binding.to.uid) is binding:
            del self._by_uid[binding.to.uid]
