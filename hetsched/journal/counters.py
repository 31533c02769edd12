"""Counters of all processes, stored in the database so that every web process can serve them.

Workers and informers are many short-lived processes. A scrape port for each of them, or a shared folder, would need
support in every deployment and would lose the counts of a process that ended. A process counts in memory and adds its
counts to rows at the end of a task or of an informer iteration; `/metrics` of any web process returns the rows. Rows
are written in order of their names, so writers cannot deadlock. If the database is unavailable, the counts stay in
memory until the next flush.
Invariant: a count never decreases, except for metrics written with `set_values`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
import structlog
from django.db import Error, connection
from django.utils import timezone

from hetsched.contracts.documents import encode
from hetsched.storage.write_lock import write_transaction

from .models import Figure

_SUM = "sum"
_ROWS = 200
log = structlog.get_logger(__name__)


class Metric(msgspec.Struct, frozen=True):
    """A metric: its name and help text for Prometheus and its labels in order. With `buckets` it is a histogram."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    def bucket(self, value: float) -> str:
        """Return the upper bound of the bucket of a value, in the notation of Prometheus."""
        place = bisect_left(self.buckets, value)
        return str(self.buckets[place]) if place < len(self.buckets) else "+Inf"


# Metric name, labels as JSON, and part: the upper bound of a bucket, `sum`, or an empty string.
Key = tuple[str, str, str]
_counted: dict[Key, float] = {}
_lock = threading.Lock()


def add(metric: Metric, *labels: str, amount: float = 1) -> None:
    """Add to a counter in memory; `flush` writes it."""
    _count([(_key(metric, labels), amount)])


def observe(metric: Metric, seconds: float, *labels: str) -> None:
    """Add one duration to a histogram."""
    _count([(_key(metric, labels, metric.bucket(seconds)), 1), (_key(metric, labels, _SUM), seconds)])


def flush() -> int:
    """Add the counts of this process to the rows; return the number of rows written."""
    with _lock:
        taken = dict(_counted)
        _counted.clear()
    try:
        # This must be atomic: the counts of a failed write are kept for the next flush, so no part of them may be
        # stored.
        with write_transaction():
            _write(taken, add=True)
    except Error as error:
        log.warning("metric counts not written", rows=len(taken), error=repr(error))
        _count(list(taken.items()))
    return len(taken)


def set_values(metric: Metric, values: Mapping[Sequence[str], float]) -> None:
    """Set the current value of a metric for each label set; delete the rows of all other label sets."""
    rows = {_key(metric, labels): value for labels, value in values.items()}
    old = Figure.objects.filter(name=metric.name).exclude(labels__in=[labels for _, labels, _ in rows])
    old.delete()
    _write(rows, add=False)


class MetricSample(msgspec.Struct, frozen=True):
    """The stored value of one metric for one set of label values: a number, or a histogram's bucket counts and sum."""

    labels: tuple[str, ...]
    value: float
    at: datetime
    buckets: dict[str, float]


def samples(metric: Metric) -> list[MetricSample]:
    """Return the stored counts of a metric, by labels."""
    found: dict[str, MetricSample] = {}
    for row in Figure.objects.filter(name=metric.name).order_by("labels", "part"):
        sample = found.get(row.labels)
        if sample is None:
            labels = msgspec.json.decode(row.labels, type=tuple[str, ...])
            sample = found[row.labels] = MetricSample(labels, 0.0, row.at, {})
        if row.part and row.part != _SUM:
            sample.buckets[row.part] = row.value
        else:
            found[row.labels] = MetricSample(sample.labels, row.value, max(sample.at, row.at), sample.buckets)
    return list(found.values())


def _count(items: Sequence[tuple[Key, float]]) -> None:
    with _lock:
        for key, amount in items:
            _counted[key] = _counted.get(key, 0) + amount


def _key(metric: Metric, labels: Sequence[str], part: str = "") -> Key:
    assert len(labels) == len(metric.labels), metric.name
    return metric.name, encode(list(labels)).decode(), part


def _write(rows: Mapping[Key, float], *, add: bool) -> None:
    table, now = Figure._meta.db_table, connection.ops.adapt_datetimefield_value(timezone.now())
    value = f"{table}.value + excluded.value" if add else "excluded.value"
    ordered = sorted(rows.items())
    for start in range(0, len(ordered), _ROWS):
        some = ordered[start : start + _ROWS]
        places = ", ".join(["(%s, %s, %s, %s, %s)"] * len(some))
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {table} (name, labels, part, value, at) VALUES {places} "  # noqa: S608
                f"ON CONFLICT (name, labels, part) DO UPDATE SET value = {value}, at = excluded.at",
                [word for key, amount in some for word in (*key, amount, now)],
            )
