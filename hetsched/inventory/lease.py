"""Who decides for a cluster, and who follows it.

Rule: a lease on a row, taken by compare-and-set when nobody holds it or it is over by the database's clock; taking it
raises the epoch. What is written under a lease names its epoch, so a holder that slept through its lease can no longer
write anything, whatever it believes. `leading` is about deciding, `following` about a live cluster's watch,
`discovering` about writing there what its nodes are.
Invariant: an epoch belongs to one holder for ever.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
from django.conf import settings
from django.db.models import F, Model, Q
from django.db.models.functions import Now

from hetsched.storage.prepared_queries import Given, Prepared, PreparedUpdate

from .models import Cluster, Connection

EPOCHS_LEFT_OUT = 1_000_000
_LONGEST_SECONDS = 300  # as HETSCHED_LEASE_SECONDS at most is


class Lease(msgspec.Struct, frozen=True):
    """The right to act for one cluster under one epoch."""

    cluster_id: int
    epoch: int


class _Changes(NamedTuple):
    taking: PreparedUpdate
    renewing: PreparedUpdate


class Leases:
    """One kind of lease, kept in three columns of a row per cluster: `<name>_epoch`, `<name>_id`, `<name>_until`."""

    def __init__(self, model: type[Model], name: str) -> None:
        self._rows = model._default_manager.all
        self._epoch, self._id, self._until = f"{name}_epoch", f"{name}_id", f"{name}_until"
        self._free = Prepared(lambda: self._if_free().order_by().values_list(self._epoch, flat=True))
        self._giving_up = PreparedUpdate(self._own, **{self._until: None, self._id: ""})
        self._changes: dict[int, _Changes] = {}

    def take(self, cluster_id: int, holder: str) -> Lease | None:
        """Take the lease, or return None while somebody else holds it."""
        epoch = self._free.first(cluster=cluster_id)
        if epoch is None:
            return None
        how = self._lasting(settings.HETSCHED_LEASE_SECONDS)
        taken = how.taking(cluster=cluster_id, epoch=epoch, holder=holder[:120])
        return Lease(cluster_id, epoch + 1) if taken else None

    def renew(self, lease: Lease) -> bool:
        """Prolong the lease; False when another holder took over."""
        how = self._lasting(settings.HETSCHED_LEASE_SECONDS)
        return how.renewing(cluster=lease.cluster_id, epoch=lease.epoch) == 1

    def give_up(self, lease: Lease) -> None:
        """End the lease early; somebody else's is left alone."""
        self._giving_up(cluster=lease.cluster_id, epoch=lease.epoch)

    def is_held(self, cluster_id: int) -> bool:
        """Tell whether somebody's lease runs."""
        return self._rows().filter(~self._is_free(), pk=cluster_id).exists()

    def _is_free(self) -> Q:
        """A lease that ends later than any may was taken before the database's clock was set back: nobody has it."""
        late = Now() + timedelta(seconds=_LONGEST_SECONDS)
        return Q(**{self._until: None}) | Q(**{f"{self._until}__lt": Now()}) | Q(**{f"{self._until}__gt": late})

    def _if_free(self) -> Any:
        return self._rows().filter(self._is_free(), pk=Given("cluster"))

    def _own(self) -> Any:
        return self._rows().filter(pk=Given("cluster"), **{self._epoch: Given("epoch")})

    def _lasting(self, seconds: int) -> _Changes:
        """Return how a lease of so many seconds is taken and prolonged."""
        if seconds not in self._changes:
            until = {self._until: Now() + timedelta(seconds=seconds)}
            taken = {self._epoch: F(self._epoch) + 1, self._id: Given("holder"), **until}
            self._changes[seconds] = _Changes(
                PreparedUpdate(lambda: self._if_free().filter(**{self._epoch: Given("epoch")}), **taken),
                PreparedUpdate(self._own, **until),
            )
        return self._changes[seconds]


def end_all() -> None:
    """End every lease and leave a gap in the epochs, in a database that a backup was read into.

    Whoever held one since the backup was taken wrote epochs that these rows know nothing of. To the clusters this is
    another installation, which waits while the one of before is still about.
    """
    for model, name in ((Cluster, "leader"), (Connection, "follower"), (Connection, "discoverer")):
        epoch = f"{name}_epoch"
        model._default_manager.update(**{epoch: F(epoch) + EPOCHS_LEFT_OUT, f"{name}_id": "", f"{name}_until": None})
    for connection in Connection.objects.only("pk"):
        Connection.objects.filter(pk=connection.pk).update(installation=uuid.uuid4())


leading = Leases(Cluster, "leader")
following = Leases(Connection, "follower")
discovering = Leases(Connection, "discoverer")
