"""Leader election between installations through a coordination.k8s.io Lease in the cluster.

A separate thread renews the Lease, so that a long write does not delay the renewal. While the API server does not
respond, the cluster is out of sync and the informer continues. Once another installation holds the Lease, the informer
ends.
Invariant: no decision is made for a cluster unless it is certain that this installation holds its Lease.
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
from hetsched.contracts.message import Message
from hetsched.inventory.models import Cluster, Sync
from hetsched.scheduling.leases import Lease

_TICK_SECONDS = 0.5
# by cluster ID; kept between attempts, because an election stores what it observed of another installation's Lease
_elections: dict[int, Election] = {}
log = structlog.get_logger(__name__)


@contextmanager
def leadership(
    cluster: Cluster, api: Api, lease: Lease, ended: threading.Event
) -> Iterator[tuple[threading.Event, Callable[[], bool]]]:
    """Hold the cluster's Lease while the `with` block runs.

    Yield an event that is set when the process ends or another installation becomes the leader, and a function that
    returns True while the Lease is held. Raises: InputError `AnotherInstallation`; ApiFailure.
    """
    election = _elections.setdefault(cluster.pk, Election(str(cluster.connection.installation)))
    holder = election.acquire(api, lease.epoch)
    if holder:
        raise InputError(
            "AnotherInstallation",
            Message(
                "another installation of hetsched is the leader for {cluster}: {text}",
                cluster=cluster.name,
                text=holder,
            ),
            hint=Message(
                "Stop the other installation, or wait until the Lease {lease} expires; "
                "this installation makes no decisions until then",
                lease=f"{NAMESPACE}/{NAME}",
            ),
        )
    over, done = threading.Event(), threading.Event()
    keeper = threading.Thread(
        target=_keep,
        args=(cluster, api, lease, election, ended, done, over),
        name=f"leader election for {cluster.name}",
    )
    keeper.start()
    try:
        yield over, lambda: election.is_held
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
    """Renew the Lease until the `with leadership()` block or the process ends."""
    renew_at = time.monotonic() + RENEW_SECONDS
    try:
        while not (ended.wait(_TICK_SECONDS) or done.is_set()):
            if time.monotonic() < renew_at:
                continue
            renew_at = time.monotonic() + RENEW_SECONDS
            try:
                holder = election.acquire(api, lease.epoch)
            except ApiFailure as failure:
                log.warning("the Lease cannot be renewed", cluster=cluster.name, reason=str(failure))
                holder = ""
            if holder or not election.is_held:
                Sync.objects.filter(cluster=cluster, epoch=lease.epoch).update(synced_at=None)
            if holder:
                log.error("another installation is now the leader", cluster=cluster.name, holder=holder)
                return
    finally:
        over.set()
        connections.close_all()
