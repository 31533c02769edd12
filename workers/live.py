"""Decide and bind in the process that follows a live cluster, a moment after it wrote what came.

Problem: a wake-up through the message store, a worker that takes it and another one that binds take longer than
kube-scheduler does for the whole way.
Rule: who follows a cluster also leads it, by the same lease as any worker: between two batches of changes it decides
what is due, exactly as `schedule` does, and hands what is recorded to threads that bind it. *Binding* is recorded with
the reservation, before the first call; what came back, as a reply or as an event of the watch, is written for many pods
at once. The echo of a binding says nothing else, so it is not looked up again, unless its row is by then no more on its
way to that node. A binding is written only while it is ours: the lease it was decided under and the cluster's own Lease
are, and `bind.WRITE_WITHIN` is not over; what is not begun by then the workers find.
No message is needed for any of this. Where this process dies, lags or loses its lease, the sweep has the workers do the
same: pods are due while nobody leads, and *binding* for longer than `bind.LEFT_AFTER` is left by somebody.
Invariants: one thread decides and writes; no transaction is open during a call; what is written names the epoch.
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
from hetsched.adapters.kubernetes.binding import Bound, Fate, ToBind
from hetsched.adapters.kubernetes.reflector import Gone, Seen
from hetsched.contracts.allocation import EMPTY
from hetsched.contracts.observed import Changes, ObservedPod
from hetsched.inventory.lease import Lease, leading
from hetsched.inventory.models import Cluster
from hetsched.journal import counters, figures
from hetsched.placement import dispatch
from hetsched.placement.actions import Conflict, Contradiction, Result, bindable, confirm
from hetsched.placement.lifecycle import HOLDING, State
from hetsched.placement.models import Pod
from hetsched.placement.queue import is_any_due
from hetsched.placement.snapshot import Warm, warm

from . import bind
from .interpreter_priority import giving_way
from .schedule import batch

LOOK_SECONDS = 0.5  # how often the queue is looked at though nobody said that it changed
WARM_SECONDS = 2.0
CONFIRM_SECONDS = 0.5  # nobody waits for it: the echo is noted and left out meanwhile
CONFIRM_AT_ONCE = 200
LARGE_NODES = 1000  # from here on a state takes seconds to fold
MOST_AT_ONCE = 200  # pods decided together: the first ones are bound while the next ones are decided
MOST_BINDING = 400
KEPT_SECONDS = 30.0
DRAIN_SECONDS = 10.0
TELL_SECONDS, TELL_AT_THE_LATEST_SECONDS = 1.0, 5.0
_ON_ITS_NODE = [state.value for state in HOLDING if state is not State.PLACED]
log = structlog.get_logger(__name__)


class _OnItsWay:
    """One binding: whether it was accepted, whether that is written, and since when."""

    __slots__ = ("accepted", "since", "to", "written")

    def __init__(self, to: ToBind, since: float) -> None:
        self.to = to
        self.since = since
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
    """What tells the echo of a binding from any other news of a pod."""

    metadata: _Meta
    spec: _Spec
    status: _Status


_echo = msgspec.json.Decoder(_Echo)


def _fold(copy: Warm) -> None:
    """Fold a state beside the events, letting whoever takes them in go first."""
    try:
        with giving_way, copy.held():
            pass
    finally:
        connection.close()


class Live:
    """The deciding half of a follower."""

    def __init__(self, cluster: Cluster, api: Api, leads: Callable[[], bool] = lambda: True) -> None:
        self._cluster = cluster
        self._stands = leads
        self._closing = self._unproven = False
        self._api = api
        self._holder = f"{socket.gethostname()}/{os.getpid()}"
        self._lease: Lease | None = None
        self._asked = self._looked = self._confirmed = self._warmed = -float(settings.HETSCHED_LEASE_SECONDS)
        self._due = True
        self._most = MOST_AT_ONCE
        self._threads = ThreadPoolExecutor(bind.AT_ONCE, thread_name_prefix="bind")
        self._futures: set[Future[Bound]] = set()
        self._warming: Future[None] | None = None
        self._fates: queue.SimpleQueue[Bound] = queue.SimpleQueue()
        # What was taken out by key of the pod until it is confirmed, and which of it is to be looked up after all.
        self._echoes: dict[str, ObservedPod | Seen] = {}
        self._passed: list[str] = []
        self._by_uid: dict[str, _OnItsWay] = {}
        self._by_pod: dict[int, _OnItsWay] = {}
        self._accepted: list[int] = []
        self._binding = 0
        self._untold_since: float | None = None
        dispatch.here(cluster.pk, dispatch.SCHEDULE, self.look)
        dispatch.here(cluster.pk, dispatch.TELL, self._tell_later)

    def look(self) -> None:
        """Note that the queue may have changed."""
        self._due = True

    def lead(self) -> None:
        """Have the lease, if nobody else has it."""
        self._leads(time.monotonic())

    def close(self) -> None:
        """Finish what was begun, and let others lead."""
        dispatch.elsewhere(self._cluster.pk, dispatch.SCHEDULE)
        dispatch.elsewhere(self._cluster.pk, dispatch.TELL)
        wait(set(self._futures), timeout=DRAIN_SECONDS)
        self._closing = True
        self._threads.shutdown(wait=False, cancel_futures=True)  # what is left the workers find
        self._take_fates()
        self._confirm()
        if self._lease is not None:
            leading.give_up(self._lease)

    def is_only_echo(self, event: Seen | Gone) -> bool:
        """Tell whether an event says only that a binding of this process was accepted, and note it, unread."""
        self._echoes.pop(event.key, None)
        if isinstance(event, Gone) or not self._by_uid:
            return False
        try:
            told = _echo.decode(event.body)
        except msgspec.DecodeError:
            return False
        one, status = self._by_uid.get(told.metadata.uid), told.status
        if one is None or told.spec.node != one.to.node or told.metadata.deleted is not None:
            return False
        if status.containers or status.before or status.reason or status.phase not in ("", "Pending"):
            return False
        self._accept(one)
        if not one.written:
            self._echoes[event.key] = event
        return True

    def take_passed(self) -> list[Seen]:
        """Return the events that were left unread and are to be looked up after all."""
        unread = [self._echoes.get(key) for key in self._passed]
        found = [event for event in unread if isinstance(event, Seen)]
        for event in found:
            del self._echoes[event.key]
        return found

    def leave_out_echoes(self, changes: Changes) -> None:
        """Take out of changes what says only that a binding of this process was accepted, and note it."""
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
        """Whether echoes that were taken out are to be looked up after all."""
        return bool(self._passed)

    def turn(self) -> bool:
        """Decide what is due and write what became of bindings; tell whether more is to be done at once."""
        self._take_fates()
        more = self._decide()
        now = time.monotonic()
        if self._accepted and (len(self._accepted) >= CONFIRM_AT_ONCE or now - self._confirmed > CONFIRM_SECONDS):
            self._confirm()
            self._confirmed = now
            self._forget(now - KEPT_SECONDS)
        self._have_told(now, more)
        return more

    def _tell_later(self) -> None:
        if self._untold_since is None:
            self._untold_since = time.monotonic()

    def _have_told(self, now: float, busy: bool) -> None:
        """Have the workers tell what was decided, once in a while, and not while pods wait for their nodes."""
        waited = 0.0 if self._untold_since is None else now - self._untold_since
        if waited > TELL_AT_THE_LATEST_SECONDS or (waited > TELL_SECONDS and not busy and not self._binding):
            self._untold_since = None
            dispatch.send(self._cluster.pk, dispatch.TELL)

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
            # Somebody else leads, or wrote meanwhile: who it is shows at the next renewal.
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

    def _keep_warm(self, copy: Warm, now: float) -> None:
        """Have what others hold taken in once in a while, so that the next pod does not wait for all of it.

        The first time that is the whole cluster: where it is large, what happens meanwhile is taken in beside it.
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
        """Have the lease, asking for it once in a while."""
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
            to = bind.binding_of(
                self._cluster.name, waiting.pod_id, waiting.uid, waiting.spec, result.node_name, held, self._lease.epoch
            )
            self._by_uid[to.uid] = self._by_pod[to.pod_id] = _OnItsWay(to, now)
            self._binding += 1
            is_ours = partial(self._is_ours, self._lease, now + bind.WRITE_WITHIN.total_seconds())
            future = self._threads.submit(bind.write, self._api, self._cluster.name, to, is_ours=is_ours)
            self._futures.add(future)
            future.add_done_callback(partial(self._done, to))

    def _is_ours(self, lease: Lease, until: float) -> bool:
        """Tell, in any thread, whether what was decided under a lease may be written."""
        return not self._closing and self._lease == lease and time.monotonic() < until and self._stands()

    def _done(self, to: ToBind, future: Future[Bound]) -> None:
        self._futures.discard(future)
        if future.cancelled():
            return
        error = future.exception()
        self._fates.put(Bound(to.pod_id, Fate.UNKNOWN, repr(error)) if error else future.result())

    def _take_fates(self) -> None:
        """Take what came back; what was not accepted is written at once, as a worker would."""
        others: list[Bound] = []
        while not self._fates.empty():
            fate = self._fates.get()
            self._binding -= 1
            one = self._by_pod.get(fate.pod_id)
            if fate.fate is Fate.BOUND and one is not None:
                self._accept(one)
                continue
            others.append(fate)
            self._unproven = self._unproven or fate.fate is Fate.UNPROVEN
            if one is not None and not one.accepted:
                self._drop(one)
        if others:
            bind.note(self._cluster, others)

    def _is_echo(self, seen: ObservedPod) -> bool:
        one = self._by_uid.get(seen.uid)
        if one is None or seen.node_name != one.to.node:
            return False
        if seen.ended or seen.deleting or seen.wait or seen.refusal or seen.phase not in ("", "Pending"):
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
        """Write that bindings were accepted, those that were not seen to be on already."""
        pods, self._accepted = self._accepted, []
        if not pods:
            return
        bind.act_on(self._cluster, confirm, pods)
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
        """Let go what was accepted long ago; its echo came, or is looked up as any other event."""
        for one in [one for one in self._by_pod.values() if one.since < before and one.accepted]:
            self._drop(one)

    def _drop(self, one: _OnItsWay) -> None:
        self._by_pod.pop(one.to.pod_id, None)
        if self._by_uid.get(one.to.uid) is one:
            del self._by_uid[one.to.uid]
