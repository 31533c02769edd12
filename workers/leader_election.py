"""Stand for a live cluster: of several installations the one that holds the cluster's Lease decides there.

Rule: a thread of its own renews, so that a long write delays nothing. While the API server does not answer the cluster
counts as out of step, and following goes on; once another installation holds the Lease it ends.
Invariant: nothing is decided for a cluster whose Lease is not surely ours.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import structlog
from django.db import connections

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.leader_lease import NAME, NAMESPACE, RENEW_SECONDS, Election
from hetsched.contracts.errors import InputError
from hetsched.inventory.lease import Lease
from hetsched.inventory.models import Cluster, Sync

_TICK_SECONDS = 0.5
_elections: dict[int, Election] = {}  # by cluster; what was seen of a stranger's Lease outlives one try
log = structlog.get_logger(__name__)


@contextmanager
def standing(
    cluster: Cluster, api: Api, lease: Lease, ended: threading.Event
) -> Iterator[tuple[threading.Event, Callable[[], bool]]]:
    """Hold the cluster's Lease inside the block.

    Gives an event, set when the process ends or another installation took over, and whether the Lease is ours now.
    Raises: InputError `AnotherInstallation`; ApiFailure.
    """
    election = _elections.setdefault(cluster.pk, Election(str(cluster.connection.installation)))
    holder = election.stand(api, lease.epoch)
    if holder:
        raise InputError(
            "AnotherInstallation",
            f"another installation of hetsched schedules {cluster.name}: {holder}",
            hint=f"Stop it, or wait until its Lease {NAMESPACE}/{NAME} is over; here nothing is decided meanwhile",
        )
    over, done = threading.Event(), threading.Event()
    keeper = threading.Thread(
        target=_keep, args=(cluster, api, lease, election, ended, done, over), name=f"stand for {cluster.name}"
    )
    keeper.start()
    try:
        yield over, lambda: election.lasting
    finally:
        done.set()
        keeper.join()
        with suppress(ApiFailure):
            election.step_down(api, lease.epoch)


def _keep(
    cluster: Cluster,
    api: Api,
    lease: Lease,
    election: Election,
    ended: threading.Event,
    done: threading.Event,
    over: threading.Event,
) -> None:
    """Renew until the end."""
    renew_at = time.monotonic() + RENEW_SECONDS
    try:
        while not (ended.wait(_TICK_SECONDS) or done.is_set()):
            if time.monotonic() < renew_at:
                continue
            renew_at = time.monotonic() + RENEW_SECONDS
            try:
                holder = election.stand(api, lease.epoch)
            except ApiFailure as failure:
                log.warning("the Lease cannot be renewed", cluster=cluster.name, reason=str(failure))
                holder = ""
            if holder or not election.lasting:
                Sync.objects.filter(cluster=cluster, epoch=lease.epoch).update(synced_at=None)
            if holder:
                log.error("another installation took over", cluster=cluster.name, holder=holder)
                return
    finally:
        over.set()
        connections.close_all()
