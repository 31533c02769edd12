"""The process that watches live clusters, `python -m django watch`: one thread per cluster, informer or standby.

Every `POLL_SECONDS` it starts threads for clusters without one, and every `TOKEN_SECONDS` it passes renewed tokens to
them. A failure of an informer is recorded on the connection of its cluster, and the informer is restarted. The liveness
check passes while every thread completes its iterations; the readiness check passes while every cluster was listed.
`hetsched scheduler` starts its background processes when the first backlog of these clusters is scheduled.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import structlog
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import close_old_connections, connections

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import shortened
from hetsched.inventory.connections import check_identity, is_in_shadow
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.journal import counters, heartbeat, metric_names
from hetsched.journal.publish import background_sender
from hetsched.scheduling.leases import Lease, following
from hetsched.storage.log_checkpoints import background_checkpoints

from .informer import Informer
from .informer_host import InformerHost
from .leader_election import leadership
from .machine_code import load_cached_code
from .resource_watches import iterated_at
from .standby import Standby, TakeoverPhases

POLL_SECONDS = 1.0
TOKEN_SECONDS = RETRY_SECONDS = REPORT_SECONDS = 5.0
STUCK_SECONDS = 120.0
COLLECT_AFTER = (50_000, 10, 10)  # thresholds of `gc`: few objects are in cycles, most are long-lived
log = structlog.get_logger(__name__)


def main(api_of: Callable[[Cluster], Api], ended: threading.Event) -> None:
    """Run an informer thread for each live cluster without one, until `ended` is set."""
    gc.set_threshold(*COLLECT_AFTER)
    heartbeat.clear(heartbeat.WATCH_READY)
    heartbeat.clear(heartbeat.WATCH_IDLE)
    if settings.HETSCHED_DECIDE_IN_WATCH:
        load_cached_code()  # before the first pods wait for decisions
    with background_sender(), background_checkpoints():
        _run_until_ended(api_of, ended)


def _run_until_ended(api_of: Callable[[Cluster], Api], ended: threading.Event) -> None:
    watches: dict[int, _ClusterWatch] = {}
    holder = f"{socket.gethostname()}/{os.getpid()}"
    tokens_due_at = standbys_due_at = time.monotonic()
    while not ended.is_set():
        try:
            _start_watches(watches, holder, api_of, ended)
            now = time.monotonic()
            if now >= tokens_due_at:
                tokens_due_at = now + TOKEN_SECONDS
                _update_tokens(watches, api_of)
            if now >= standbys_due_at:
                standbys_due_at = now + REPORT_SECONDS
                _report_standbys(watches.values())
            if all(watch.is_ready for watch in watches.values()):
                heartbeat.beat(heartbeat.WATCH_READY)
                if all(watch.is_idle for watch in watches.values()):
                    heartbeat.beat(heartbeat.WATCH_IDLE)
        except DatabaseError as error:
            log.warning("the list of clusters cannot be read", reason=str(error))
        close_old_connections()
        if all(time.monotonic() - at < STUCK_SECONDS for at in list(iterated_at.values())):
            heartbeat.beat("watch")
        ended.wait(POLL_SECONDS)
    for watch in watches.values():
        watch.join()


def _start_watches(
    watches: dict[int, _ClusterWatch], holder: str, api_of: Callable[[Cluster], Api], ended: threading.Event
) -> None:
    """Start an informer for each cluster whose lease is free, and a standby for each other cluster."""
    for cluster in Cluster.objects.filter(kind=ClusterKind.KUBERNETES, connection__isnull=False).only("name"):
        known = watches.get(cluster.pk)
        if known is not None and known.is_alive():
            continue
        lease = following.take(cluster.pk, holder)
        if lease is not None or settings.HETSCHED_STANDBY:
            watches[cluster.pk] = _ClusterWatch(cluster, lease, holder, api_of, ended)
            watches[cluster.pk].start()


def _update_tokens(watches: Mapping[int, _ClusterWatch], api_of: Callable[[Cluster], Api]) -> None:
    """Let the clients of running informers and standbys use renewed tokens."""
    running = [pk for pk, watch in watches.items() if watch.is_alive()]
    for cluster in Cluster.objects.filter(pk__in=running).only("name"):
        try:
            api_of(cluster)
        except InputError as error:  # the informer reports an unusable connection itself
            log.warning("connection cannot be read", cluster=cluster.name, reason=str(error))


def _report_standbys(watches: Iterable[_ClusterWatch]) -> None:
    """Count a report for each warm standby; its time shows that the standby still runs."""
    for watch in watches:
        if watch.is_alive() and watch.is_warm_standby:
            counters.add(metric_names.STANDBY, watch.cluster.name)
    counters.flush()


class _ClusterWatch(threading.Thread):
    """Thread that watches one cluster: as a standby until it has the lease, then as its informer.

    A failure of the informer is recorded on the connection of the cluster, and the thread ends; `main` starts another.
    """

    def __init__(
        self,
        cluster: Cluster,
        lease: Lease | None,
        holder: str,
        api_of: Callable[[Cluster], Api],
        ended: threading.Event,
    ) -> None:
        super().__init__(name=f"watch {cluster.name}")
        self.cluster = cluster
        self._lease = lease
        self._holder = holder
        self._api_of = api_of
        self._ended = ended
        self._standby: Standby | None = None
        self._informer: Informer | None = None

    @property
    def is_warm_standby(self) -> bool:
        return self._lease is None and self._standby is not None and self._standby.is_warm

    @property
    def is_ready(self) -> bool:
        """Return True if this process has listed the cluster, or cannot because its API server fails."""
        if self._informer is not None:
            return self._informer.has_applied or self._informer.watches.is_failing
        if self._standby is not None:
            return self._standby.is_warm or self._standby.watches.is_failing
        return not self.is_alive()  # it ended with a failure

    @property
    def is_idle(self) -> bool:
        """Return True unless pods of the cluster wait for a decision or a binding of this process."""
        return self._informer is None or self._informer.is_idle

    def run(self) -> None:
        cluster = self.cluster
        try:
            if self._lease is None:
                self._lease = self._wait_for_lease(self._api_of(cluster))
            if self._lease is not None:
                self._lead(self._lease)
        except (InputError, ApiFailure) as failure:
            log.warning("cluster watch failed", cluster=cluster.name, reason=str(failure))
            if self._lease is not None:
                Connection.objects.filter(cluster=cluster).update(failure=shortened(failure.text, 500))
            self._ended.wait(RETRY_SECONDS)
        except Exception:
            log.exception("cluster watch ended", cluster=cluster.name)
            self._ended.wait(RETRY_SECONDS)
        finally:
            iterated_at.pop(cluster.pk, None)
            if self._standby is not None:
                self._standby.watches.stop()
            if self._lease is not None:
                following.release(self._lease)
            connections.close_all()

    def _wait_for_lease(self, api: Api) -> Lease | None:
        self._standby = Standby(self.cluster.pk, api, self._ended)
        return self._standby.wait_for_lease(partial(following.take, self.cluster.pk, self._holder))

    def _lead(self, lease: Lease) -> None:
        """Run the informer under `lease`; it continues the standby if the standby has received all events."""
        phases = TakeoverPhases(lease)
        cluster = Cluster.objects.get(pk=self.cluster.pk)
        api = self._api_of(cluster)
        log.info("informer lease acquired", cluster=cluster.name, epoch=lease.epoch)
        phases.end("connection")
        check_identity(cluster, api)
        phases.end("identity")
        standby = self._standby
        if standby is not None and not standby.has_caught_up(lease, api):
            standby.watches.stop()
            standby = None
        phases.end("catch-up")
        connection = Connection.objects.filter(cluster=cluster)
        if is_in_shadow(cluster.pk):  # in shadow mode no decisions are made, so no leader election is needed
            connection.exclude(failure="").update(failure="")
            self._informer = Informer(lease, api, self._ended, standby=standby, phases=phases)
            self._informer.run()
            return
        with leadership(cluster, api, lease, self._ended) as (lost, is_leader):
            phases.end("election")
            connection.exclude(failure="").update(failure="")
            host = InformerHost(cluster, api, is_leader) if settings.HETSCHED_DECIDE_IN_WATCH else None
            self._informer = Informer(lease, api, lost, is_leader=is_leader, host=host, standby=standby, phases=phases)
            self._informer.run()


def until_signalled() -> threading.Event:
    """Return an event that SIGTERM or SIGINT sets."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    return ended
