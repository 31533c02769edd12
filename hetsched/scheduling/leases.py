"""Leases on cluster rows: which process decides for a cluster, and which one watches it.

A lease is acquired by compare-and-set when it is free or expired by the database's clock; acquiring it raises the
epoch. Writes under a lease carry its epoch, so a holder that was suspended beyond its lease can no longer write.
`leading` covers deciding, `following` the watch of a live cluster, `discovering` publishing node facts there.
Invariant: an epoch belongs to one holder forever.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
from django.conf import settings
from django.db.models import F, Model, Q
from django.db.models.functions import Now

from hetsched.inventory.models import Cluster, Connection
from hetsched.storage.prepared_queries import Parameter, PreparedQuery, PreparedUpdate

EPOCHS_LEFT_OUT = 1_000_000
_LONGEST_SECONDS = 300  # the maximum of HETSCHED_LEASE_SECONDS


class Lease(msgspec.Struct, frozen=True):
    """The right to act for one cluster under one epoch."""

    cluster_id: int
    epoch: int


class _Changes(NamedTuple):
    taking: PreparedUpdate
    renewing: PreparedUpdate


class Leases:
    """One kind of lease, stored in three columns of a row per cluster: `<name>_epoch`, `<name>_id`, `<name>_until`."""

    def __init__(self, model: type[Model], name: str) -> None:
        self._rows = model._default_manager.all
        self._epoch, self._id, self._until = f"{name}_epoch", f"{name}_id", f"{name}_until"
        self._free = PreparedQuery(lambda: self._if_free().order_by().values_list(self._epoch, flat=True))
        self._giving_up = PreparedUpdate(self._own, **{self._until: None, self._id: ""})
        self._changes: dict[int, _Changes] = {}

    def take(self, cluster_id: int, holder: str) -> Lease | None:
        """Acquire the lease, or return None while another process holds it."""
        epoch = self._free.first(cluster=cluster_id)
        if epoch is None:
            return None
        how = self._lasting(settings.HETSCHED_LEASE_SECONDS)
        taken = how.taking(cluster=cluster_id, epoch=epoch, holder=holder[:120])
        return Lease(cluster_id, epoch + 1) if taken else None

    def renew(self, lease: Lease) -> bool:
        """Renew the lease; False when another holder took over."""
        how = self._lasting(settings.HETSCHED_LEASE_SECONDS)
        return how.renewing(cluster=lease.cluster_id, epoch=lease.epoch) == 1

    def give_up(self, lease: Lease) -> None:
        """Release the lease early; the lease of another holder is not changed."""
        self._giving_up(cluster=lease.cluster_id, epoch=lease.epoch)

    def is_held(self, cluster_id: int) -> bool:
        """Return whether any process holds the lease."""
        return self._rows().filter(~self._is_free(), pk=cluster_id).exists()

    def _is_free(self) -> Q:
        """Return the condition for a free lease.

        A lease that ends later than the maximum was acquired before the database's clock was set back; it counts as
        free.
        """
        late = Now() + timedelta(seconds=_LONGEST_SECONDS)
        return Q(**{self._until: None}) | Q(**{f"{self._until}__lt": Now()}) | Q(**{f"{self._until}__gt": late})

    def _if_free(self) -> Any:
        return self._rows().filter(self._is_free(), pk=Parameter("cluster"))

    def _own(self) -> Any:
        return self._rows().filter(pk=Parameter("cluster"), **{self._epoch: Parameter("epoch")})

    def _lasting(self, seconds: int) -> _Changes:
        """Return the queries that acquire and renew a lease of this duration."""
        if seconds not in self._changes:
            until = {self._until: Now() + timedelta(seconds=seconds)}
            taken = {self._epoch: F(self._epoch) + 1, self._id: Parameter("holder"), **until}
            self._changes[seconds] = _Changes(
                PreparedUpdate(lambda: self._if_free().filter(**{self._epoch: Parameter("epoch")}), **taken),
                PreparedUpdate(self._own, **until),
            )
        return self._changes[seconds]


def end_all() -> None:
    """End every lease and leave a gap in the epochs, in a database restored from a backup.

    A holder since the backup may have written epochs that are missing from these rows. To the clusters this database is
    another installation, which waits while the previous one is still active.
    """
    for model, name in ((Cluster, "leader"), (Connection, "follower"), (Connection, "discoverer")):
        epoch = f"{name}_epoch"
        model._default_manager.update(**{epoch: F(epoch) + EPOCHS_LEFT_OUT, f"{name}_id": "", f"{name}_until": None})
    for connection in Connection.objects.only("pk"):
        Connection.objects.filter(pk=connection.pk).update(installation=uuid.uuid4())


leading = Leases(Cluster, "leader")
following = Leases(Connection, "follower")
discovering = Leases(Connection, "discoverer")
