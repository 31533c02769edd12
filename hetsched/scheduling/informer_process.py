"""The process that watches live clusters, `python -m django watch`: one informer thread per leased cluster.

Every `POLL_SECONDS` it starts informers for clusters without one, and every `TOKEN_SECONDS` it passes renewed tokens to
running informers. A failure of an informer is recorded on the connection of its cluster, and the informer is restarted.
The liveness check passes while every informer completes its iterations.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable

import structlog
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection as database
from django.db import connections

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import shortened
from hetsched.inventory.connections import check_identity, is_in_shadow
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.journal import heartbeat
from hetsched.journal.publish import background_sender
from hetsched.scheduling.leases import Lease, following

from .informer import Informer, iterated_at
from .informer_host import InformerHost
from .leader_election import leadership

POLL_SECONDS = 1.0  # a standby acquires a released lease within this time
TOKEN_SECONDS = RETRY_SECONDS = 5.0
STUCK_SECONDS = 120.0
COLLECT_AFTER = (50_000, 10, 10)  # thresholds of `gc`: few objects are in cycles, most are long-lived
log = structlog.get_logger(__name__)


def main(api_of: Callable[[Cluster], Api], ended: threading.Event) -> None:
    """Run an informer thread for each live cluster without one, until `ended` is set."""
    gc.set_threshold(*COLLECT_AFTER)
    with background_sender():
        _run_until_ended(api_of, ended)


def _run_until_ended(api_of: Callable[[Cluster], Api], ended: threading.Event) -> None:
    threads: dict[int, threading.Thread] = {}
    holder = f"{socket.gethostname()}/{os.getpid()}"
    tokens_due_at = time.monotonic()
    while not ended.is_set():
        try:
            _start_informers(threads, holder, api_of, ended)
            if time.monotonic() >= tokens_due_at:
                tokens_due_at = time.monotonic() + TOKEN_SECONDS
                _update_tokens(threads, api_of)
        except DatabaseError as error:
            log.warning("the list of clusters cannot be read", reason=str(error))
        database.close()
        if all(time.monotonic() - at < STUCK_SECONDS for at in list(iterated_at.values())):
            heartbeat.beat("watch")
        ended.wait(POLL_SECONDS)
    for thread in threads.values():
        thread.join()


def _start_informers(
    threads: dict[int, threading.Thread], holder: str, api_of: Callable[[Cluster], Api], ended: threading.Event
) -> None:
    """Start informers for the clusters whose lease is free."""
    for cluster in Cluster.objects.filter(kind=ClusterKind.KUBERNETES, connection__isnull=False):
        thread = threads.get(cluster.pk)
        if thread is not None and thread.is_alive():
            continue
        lease = following.take(cluster.pk, holder)
        if lease is not None:
            threads[cluster.pk] = threading.Thread(
                target=_run_informer, args=(lease, cluster, api_of, ended), name=f"watch {cluster.name}"
            )
            threads[cluster.pk].start()


def _update_tokens(threads: dict[int, threading.Thread], api_of: Callable[[Cluster], Api]) -> None:
    """Let the clients of running informers use renewed tokens."""
    for cluster in Cluster.objects.filter(pk__in=[pk for pk, thread in threads.items() if thread.is_alive()]):
        try:
            api_of(cluster)
        except InputError as error:  # the informer reports an unusable connection itself
            log.warning("connection cannot be read", cluster=cluster.name, reason=str(error))


def _run_informer(lease: Lease, cluster: Cluster, api_of: Callable[[Cluster], Api], ended: threading.Event) -> None:
    """Run the informer of one cluster; record a failure on the connection and return, so that `main` restarts it."""
    connection = Connection.objects.filter(cluster=cluster)
    try:
        api = api_of(cluster)
        check_identity(cluster, api)
        if is_in_shadow(cluster.pk):  # in shadow mode no decisions are made, so no leader election is needed
            connection.exclude(failure="").update(failure="")
            Informer(lease, api, ended).run()
            return
        with leadership(cluster, api, lease, ended) as (lost, is_leader):
            connection.exclude(failure="").update(failure="")
            host = InformerHost(cluster, api, is_leader) if settings.HETSCHED_DECIDE_IN_WATCH else None
            Informer(lease, api, lost, is_leader=is_leader, host=host).run()
    except (InputError, ApiFailure) as failure:
        log.warning("cluster watch failed", cluster=cluster.name, reason=str(failure))
        connection.update(failure=shortened(failure.text, 500))
        ended.wait(RETRY_SECONDS)
    except Exception:
        log.exception("cluster watch ended", cluster=cluster.name)
        ended.wait(RETRY_SECONDS)
    finally:
        iterated_at.pop(cluster.pk, None)
        following.release(lease)
        connections.close_all()


def until_signalled() -> threading.Event:
    """Return an event that SIGTERM or SIGINT sets."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    return ended
