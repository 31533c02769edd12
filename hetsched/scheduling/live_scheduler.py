"""Schedule and bind in the process that follows a live cluster, right after it wrote the watch events.

Waking a worker through the message broker to decide and a second one to bind takes longer than the whole scheduling and
binding cycle of kube-scheduler.
The informer process holds the same leader lease as any worker. Between two batches of changes it decides the due pods,
exactly as `schedule` does, and passes the recorded placements to a thread pool that binds them. The state *binding* is
recorded together with the reservation, before the first API call. Binding results, received as a response or as a watch
event, are written for many pods at once. A watch event that differs from the previous one of its pod only in the node
is a confirmation of the binding and is not processed again, unless the row is no longer bound to that node by then.
A binding is written only while all of these hold: the lease it was decided under, the Lease object in the cluster, and
`binding_cycle.WRITE_WITHIN`. Bindings not started by then are left to the workers.
No broker message is needed for any of this. If this process dies, lags or loses its lease, the sweep makes the workers
take over: pods are due while there is no leader, and a pod that is *binding* for longer than
`binding_cycle.LEFT_AFTER` is claimed by a worker.
Invariants: one thread decides and writes; no transaction is open during an API call; every write carries the epoch.
"""

from __future__ import annotations

import os
import queue
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

import msgspec
import structlog
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection

from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.kubernetes.binding import BindingOutcome, BindingResult, ToBind
from hetsched.adapters.kubernetes.reflector import Deleted, Upserted
from hetsched.contracts.objects.allocation import EMPTY
from hetsched.contracts.objects.observed import Changes, ObservedPod
from hetsched.inventory.models import Cluster
from hetsched.journal import counters, figures
from hetsched.placement import dispatch
from hetsched.placement.actions import Conflict, Contradiction, Result, bindable, confirm
from hetsched.placement.in_place import fingerprint
from hetsched.placement.lifecycle import HOLDING, State
from hetsched.placement.models import Pod
from hetsched.placement.scheduler_cache import SchedulerCache, warm
from hetsched.placement.scheduling_queue.active_queue import is_any_due
from hetsched.scheduling.leases import Lease, leading

from . import binding_cycle
from .interpreter_priority import giving_way
from .scheduling_loop import batch

LOOK_SECONDS = 0.5  # polling interval of the queue when no change is reported
WARM_SECONDS = 2.0
CONFIRM_SECONDS = 0.5  # not urgent: until then confirmations are recorded and skipped
CONFIRM_AT_ONCE = 200
LARGE_NODES = 1000  # from this size on, loading a snapshot takes seconds
MOST_AT_ONCE = 200  # pods per batch: the first are bound while the next are decided
MOST_BINDING = 400
KEPT_SECONDS = 30.0
DRAIN_SECONDS = 10.0
REPORT_SECONDS, MAX_REPORT_SECONDS = 1.0, 5.0
_ON_ITS_NODE = [state.value for state in HOLDING if state is not State.PLACED]
log = structlog.get_logger(__name__)


class _OnItsWay:
    """A binding in flight: whether it was accepted and written, its start time, and the pod's fingerprint then."""

    __slots__ = ("accepted", "fingerprint", "since", "to", "written")

    def __init__(self, to: ToBind, since: float, fingerprint: str) -> None:
        self.to = to
        self.since = since
        self.fingerprint = fingerprint
        self.accepted = self.written = False


class _Meta(msgspec.Struct):
    uid: str = ""
    deleted: str | None = msgspec.field(default=None, name="deletionTimestamp")


class _Spec(msgspec.Struct):
    node: str = msgspec.field(default="", name="nodeName")


class _Status(msgspec.Struct):
    phase: str = ""
    reason: str = ""
    containers: msgspec.Raw | None = msgspec.field(default=None, name="containerStatuses")
    before: msgspec.Raw | None = msgspec.field(default=None, name="initContainerStatuses")


class _Echo(msgspec.Struct):
    """The fields that distinguish the watch confirmation of a binding from any other pod event."""

    metadata: _Meta
    spec: _Spec
    status: _Status


_echo = msgspec.json.Decoder(_Echo)


def _fold(copy: SchedulerCache) -> None:
    """Load the snapshot in the background, at low interpreter priority so that event handling is not delayed."""
    try:
        with giving_way, copy.held():
            pass
    finally:
        connection.close()


class LiveScheduler:
    """Scheduling and binding part of an informer process."""

    def __init__(self, cluster: Cluster, api: Api, leads: Callable[[], bool] = lambda: True) -> None:
        self._cluster = cluster
        self._is_elected = leads
        self._closing = self._unproven = False
        self._api = api
        self._holder = f"{socket.gethostname()}/{os.getpid()}"
        self._lease: Lease | None = None
        self._asked = self._looked = self._confirmed = self._warmed = -float(settings.HETSCHED_LEASE_SECONDS)
        self._due = True
        self._most = MOST_AT_ONCE
        self._threads = ThreadPoolExecutor(binding_cycle.AT_ONCE, thread_name_prefix="bind")
        self._futures: set[Future[BindingOutcome]] = set()
        self._warming: Future[None] | None = None
        self._results: queue.SimpleQueue[BindingOutcome] = queue.SimpleQueue()
        # Skipped confirmations by pod key until the binding is written, and the keys that must be processed after all.
        self._echoes: dict[str, ObservedPod | Upserted] = {}
        self._passed: list[str] = []
        self._by_uid: dict[str, _OnItsWay] = {}
        self._by_pod: dict[int, _OnItsWay] = {}
        self._accepted: list[int] = []
        self._binding = 0
        self._unreported_since: float | None = None
        dispatch.here(cluster.pk, dispatch.SCHEDULE, self.look)
        dispatch.here(cluster.pk, dispatch.REPORT, self._report_later)

    def look(self) -> None:
        """Mark the queue as possibly changed."""
        self._due = True

    def lead(self) -> None:
        """Acquire the leader lease if it is free."""
        self._leads(time.monotonic())

    def close(self) -> None:
        """Finish bindings in flight and release the leader lease."""
        dispatch.elsewhere(self._cluster.pk, dispatch.SCHEDULE)
        dispatch.elsewhere(self._cluster.pk, dispatch.REPORT)
        wait(set(self._futures), timeout=DRAIN_SECONDS)
        self._closing = True
        self._threads.shutdown(wait=False, cancel_futures=True)  # workers claim the remaining bindings
        self._take_results()
        self._confirm()
        if self._lease is not None:
            leading.give_up(self._lease)

    def is_only_echo(self, event: Upserted | Deleted) -> bool:
        """Return whether an event only confirms a binding of this process, without parsing it; record the binding."""
        self._echoes.pop(event.key, None)
        if isinstance(event, Deleted) or not self._by_uid:
            return False
        try:
            seen = _echo.decode(event.body)
        except msgspec.DecodeError:
            return False
        one, status = self._by_uid.get(seen.metadata.uid), seen.status
        if one is None or seen.spec.node != one.to.node or seen.metadata.deleted is not None:
            return False
        if status.containers or status.before or status.reason or status.phase not in ("", "Pending"):
            return False
        self._accept(one)
        if not one.written:
            self._echoes[event.key] = event
        return True

    def take_passed(self) -> list[Upserted]:
        """Return and remove the raw events that were skipped as confirmations and must be processed after all."""
        unread = [self._echoes.get(key) for key in self._passed]
        found = [event for event in unread if isinstance(event, Upserted)]
        for event in found:
            del self._echoes[event.key]
        return found

    def leave_out_echoes(self, changes: Changes) -> None:
        """Remove watch confirmations of this process's bindings from `changes` and record them."""
        kept = []
        for key in changes.pods_gone:
            self._echoes.pop(key, None)
        for seen in changes.pods:
            self._echoes.pop(seen.key, None)
            if not self._is_echo(seen):
                kept.append(seen)
        passed, self._passed = self._passed, []
        again = [self._echoes.pop(key) for key in passed if key in self._echoes]
        kept += [seen for seen in again if isinstance(seen, ObservedPod)]
        changes.pods = kept

    @property
    def passes(self) -> bool:
        """Whether skipped confirmations must be processed after all."""
        return bool(self._passed)

    def turn(self) -> bool:
        """Run one scheduling iteration and write binding results; return whether more work is due at once."""
        self._take_results()
        more = self._decide()
        now = time.monotonic()
        if self._accepted and (len(self._accepted) >= CONFIRM_AT_ONCE or now - self._confirmed > CONFIRM_SECONDS):
            self._confirm()
            self._confirmed = now
            self._forget(now - KEPT_SECONDS)
        self._wake_reports(now, more)
        return more

    def _report_later(self) -> None:
        if self._unreported_since is None:
            self._unreported_since = time.monotonic()

    def _wake_reports(self, now: float, busy: bool) -> None:
        """Wake the workers to report decisions, at intervals and preferably while no pods are pending."""
        waited = 0.0 if self._unreported_since is None else now - self._unreported_since
        if waited > MAX_REPORT_SECONDS or (waited > REPORT_SECONDS and not busy and not self._binding):
            self._unreported_since = None
            dispatch.send(self._cluster.pk, dispatch.REPORT)

    # -- deciding ------------------------------------------------------------------------------------------------------

    def _decide(self) -> bool:
        now = time.monotonic()
        if not self._due and now - self._looked < LOOK_SECONDS:
            return False
        if self._unproven or self._binding > MOST_BINDING or not self._leads(now):
            return False
        assert self._lease is not None
        self._looked, self._due = now, False
        copy = warm(self._cluster.pk)
        try:
            if not is_any_due(self._cluster.pk):
                self._keep_warm(copy, now)
                return False
            recorded = batch(self._lease, copy, self._cluster.name, self._most, follows=True)
        except Contradiction as refusal:
            counters.add(figures.BATCHES, self._cluster.name, "refused")
            log.warning("batch refused", cluster=self._cluster.pk, pods=refusal.pods, reason=str(refusal))
            self._most = max(1, min(self._most, refusal.pods) // 2)
            self._due = True
            return True
        except Conflict as conflict:
            # Another leader was elected or wrote in the meantime; the next lease renewal shows which.
            counters.add(figures.BATCHES, self._cluster.name, "lost")
            log.info("batch lost", cluster=self._cluster.pk, epoch=self._lease.epoch, reason=str(conflict))
            self._asked, self._due = -settings.HETSCHED_LEASE_SECONDS, True
            return True
        except DatabaseError as error:
            log.warning("nothing decided", cluster=self._cluster.pk, reason=str(error))
            return False
        self._most = min(2 * self._most, MOST_AT_ONCE)
        self._bind([result for result in recorded.results if bindable(result)])
        self._due = recorded.more
        return recorded.more

    def _keep_warm(self, copy: SchedulerCache, now: float) -> None:
        """Refresh the snapshot with external changes every `WARM_SECONDS`, so that the next pod does not wait for it.

        The first refresh loads the whole cluster. On a large one it runs in the background while events are still
        handled.
        """
        if now - self._warmed <= WARM_SECONDS or not (self._warming is None or self._warming.done()):
            return
        self._warmed = now
        if copy.cold and Cluster.objects.filter(pk=self._cluster.pk, node_count__gte=LARGE_NODES).exists():
            self._warming = self._threads.submit(_fold, copy)
        else:
            with copy.held():
                self._warmed = now

    def _leads(self, now: float) -> bool:
        """Return whether the leader lease is held; acquire or renew it at intervals."""
        if now - self._asked < settings.HETSCHED_LEASE_SECONDS / (3 if self._lease else 30):
            return self._lease is not None
        self._asked = now
        if self._lease is not None and not leading.renew(self._lease):
            self._lease = None
        if self._lease is None:
            self._lease = leading.take(self._cluster.pk, self._holder)
        return self._lease is not None

    # -- binding -------------------------------------------------------------------------------------------------------

    def _bind(self, placed: Sequence[Result]) -> None:
        assert self._lease is not None
        now = time.monotonic()
        for result in placed:
            waiting = result.waiting
            held = result.allocation or EMPTY
            to = binding_cycle.binding_of(
                self._cluster.name, waiting.pod_id, waiting.uid, waiting.spec, result.node_name, held, self._lease.epoch
            )
            self._by_uid[to.uid] = self._by_pod[to.pod_id] = _OnItsWay(to, now, fingerprint(result.waiting.spec))
            self._binding += 1
            is_ours = partial(self._is_ours, self._lease, now + binding_cycle.WRITE_WITHIN.total_seconds())
            future = self._threads.submit(binding_cycle.write, self._api, self._cluster.name, to, is_ours=is_ours)
            self._futures.add(future)
            future.add_done_callback(partial(self._done, to))

    def _is_ours(self, lease: Lease, until: float) -> bool:
        """Return whether a placement decided under `lease` may still be written. Called from binder threads."""
        return not self._closing and self._lease == lease and time.monotonic() < until and self._is_elected()

    def _done(self, to: ToBind, future: Future[BindingOutcome]) -> None:
        self._futures.discard(future)
        if future.cancelled():
            return
        error = future.exception()
        self._results.put(BindingOutcome(to.pod_id, BindingResult.UNKNOWN, repr(error)) if error else future.result())

    def _take_results(self) -> None:
        """Collect binding results; write those other than *bound* at once, as a worker would."""
        others: list[BindingOutcome] = []
        while not self._results.empty():
            outcome = self._results.get()
            self._binding -= 1
            one = self._by_pod.get(outcome.pod_id)
            if outcome.result is BindingResult.BOUND and one is not None:
                self._accept(one)
                continue
            others.append(outcome)
            self._unproven = self._unproven or outcome.result is BindingResult.UNPROVEN
            if one is not None and not one.accepted:
                self._drop(one)
        if others:
            binding_cycle.note(self._cluster, others)

    def _is_echo(self, seen: ObservedPod) -> bool:
        one = self._by_uid.get(seen.uid)
        if one is None or seen.node_name != one.to.node:
            return False
        if seen.ended or seen.deleting or seen.wait or seen.refusal or seen.phase not in ("", "Pending"):
            return False
        if seen.spec is None or fingerprint(seen.spec) != one.fingerprint:
            return False
        self._accept(one)
        if not one.written:
            self._echoes[seen.key] = seen
        return True

    def _accept(self, one: _OnItsWay) -> None:
        if not one.accepted:
            one.accepted = True
            self._accepted.append(one.to.pod_id)

    def _confirm(self) -> None:
        """Write the accepted bindings, except those already confirmed by the watch."""
        pods, self._accepted = self._accepted, []
        if not pods:
            return
        binding_cycle.act_on(self._cluster, confirm, pods)
        there = set(Pod.objects.filter(pk__in=pods, state__in=_ON_ITS_NODE).values_list("id", flat=True))
        for one in [self._by_pod[pod] for pod in pods if pod in self._by_pod]:
            key = f"{one.to.namespace}/{one.to.name}"
            one.written = True
            if one.to.pod_id in there:
                self._echoes.pop(key, None)
            else:
                self._drop(one)
                self._passed.append(key)

    def _forget(self, before: float) -> None:
        """Drop accepted bindings older than `before`; a later confirmation is processed like any other event."""
        for one in [one for one in self._by_pod.values() if one.since < before and one.accepted]:
            self._drop(one)

    def _drop(self, one: _OnItsWay) -> None:
        self._by_pod.pop(one.to.pod_id, None)
        if self._by_uid.get(one.to.uid) is one:
            del self._by_uid[one.to.uid]
