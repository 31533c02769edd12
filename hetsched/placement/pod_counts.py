"""How many pods of a cluster are in which state, and when its topic is told.

Problem: counting takes longer the more pods there are. By how many a single change moves the figures cannot be seen,
and nobody notices a count that is a second old.
Rule: the counts, and a cluster's own row where nothing else of it is told, are told with each change or, by whoever
writes often, once in `COUNT_SECONDS` and once more when they have changed since. What a transaction changes is owed
from its commit on, so whoever counts before it does not count it as told.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import structlog
from django.db import close_old_connections, transaction
from django.db.models import Count

from hetsched.inventory.actions import cluster_topic
from hetsched.inventory.models import Cluster
from hetsched.inventory.tiles import cluster_head
from hetsched.journal.models import OutboxEvent
from hetsched.journal.publish import publish_many
from hetsched.storage.prepared_queries import Given, Prepared

from .lifecycle import LISTED
from .models import Pod

COUNTED = LISTED
COUNT_SECONDS = 1.0

Document = dict[str, Any]
log = structlog.get_logger(__name__)

_COUNTED = Prepared(
    lambda: (
        Pod.objects.filter(cluster=Given("cluster"), state__in=COUNTED)
        .order_by()
        .values_list("state")
        .annotate(count=Count("id"))
    )
)


def cluster_counts(cluster: Cluster) -> Document:
    """Return a cluster's own figures and how many of its pods are in each state."""
    counted = dict(_COUNTED(cluster=cluster.pk))
    return {**cluster_head(cluster), "counts": {state: counted.get(state, 0) for state in COUNTED}}


def told_figures(cluster: Cluster) -> Document:
    """Return a cluster's figures as they were told last: what is owed by now comes as a delta later.

    What was told so long ago that nobody keeps it any more is owed by nobody.
    """
    told = OutboxEvent.objects.filter(topic=cluster_topic(cluster)).order_by("-revision").values_list("data", flat=True)
    head = told.filter(data__has_key="revision").first() or {}
    counted = told.filter(data__has_key="counts").first() or cluster_counts(cluster)
    return {name: head.get(name, now) for name, now in cluster_head(cluster).items()} | {"counts": counted["counts"]}


class _Pace:
    """When the counts of a cluster were told last by this process, with which change, and which was the last."""

    def __init__(self) -> None:
        self.at = -COUNT_SECONDS
        self.changes = self.told = 0

    @property
    def owed(self) -> bool:
        return self.changes != self.told

    def owe(self) -> None:
        """Owe, once the transaction is committed, what it changes: whoever counts before does not see it."""

        def owed() -> None:
            self.changes = next(_numbers)

        transaction.on_commit(owed)


_numbers = itertools.count(1)
_paces: dict[int, _Pace] = {}
_everywhere: list[bool] = []


def _pace(cluster_id: int) -> _Pace | None:
    """Return how often the counts of a cluster are told by this process, None for always."""
    if _everywhere and cluster_id not in _paces:
        _paces[cluster_id] = _Pace()
    return _paces.get(cluster_id)


def keep_counting_seldom() -> None:
    """Count pods as `count_seldom` says in every cluster until the process ends, in a thread what is owed."""
    _everywhere.append(True)
    threading.Thread(target=_count_what_is_owed, name="counts", daemon=True).start()


def _count_what_is_owed() -> None:
    while True:
        time.sleep(COUNT_SECONDS)
        for cluster_id in list(_paces):
            try:
                count_up(cluster_id)
            except Cluster.DoesNotExist:
                _paces.pop(cluster_id)
            except Exception as error:  # the database is away: later
                log.warning("counts not told", cluster=cluster_id, error=repr(error))
        close_old_connections()


def counts_are_due(cluster_id: int) -> bool:
    """Tell, inside a transaction, whether the counts that it changes shall be told with it; else they are owed."""
    pace = _pace(cluster_id)
    if pace is None:
        return True
    now, changes = time.monotonic(), pace.changes
    if now - pace.at < COUNT_SECONDS:
        pace.owe()
        return False

    def told() -> None:
        pace.at, pace.told = now, changes

    transaction.on_commit(told)
    return True


def count_seldom(cluster_id: int) -> None:
    """Tell the counts of this cluster once in `COUNT_SECONDS`: whoever asks for it also calls `count_up`."""
    _paces[cluster_id] = _Pace()


def count_always(cluster_id: int) -> None:
    """Tell counts with every change again, and those that are owed now."""
    count_up(cluster_id, at_once=True)
    _paces.pop(cluster_id, None)


def count_up(cluster_id: int, *, at_once: bool = False) -> None:
    """Tell the counts of a cluster that changed since they were told, if that is some time ago."""
    pace = _paces.get(cluster_id)
    if pace is None or not pace.owed or not (at_once or time.monotonic() - pace.at >= COUNT_SECONDS):
        return
    with transaction.atomic():
        pace.at = -COUNT_SECONDS
        topic = cluster_topic(Cluster.objects.get(pk=cluster_id))
        publish_many({topic: lambda: cluster_figures(Cluster.objects.get(pk=cluster_id))})


def cluster_figures(cluster: Cluster) -> Document:
    """Return what a change tells of a cluster: its own figures, and the counts unless they were told a moment ago."""
    return cluster_counts(cluster) if counts_are_due(cluster.pk) else cluster_head(cluster)
