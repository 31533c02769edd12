"""Rate limits that all processes share and that are exact under concurrent requests.

If a process reads a counter and then writes it, concurrent requests exceed the limit; with separate counters in each
process, the limit is multiplied by the number of processes. These limits therefore use the generic cell rate algorithm.
A bucket stores one time, `full_at`, at which all tokens taken from it are replenished. A request is admitted if, with
its own token counted, `full_at` is at most `burst` token intervals ahead. Taking a token is one database statement that
uses the clock of the database, so concurrent requests get exactly the available tokens, regardless of the clocks of the
web processes. Requests that only read do not write rows: their buckets are in the memory of each process and use its
monotonic clock.
Source: ITU-T I.371, GCRA as a virtual scheduling algorithm.
Invariant: in any interval of t seconds at most burst + t x rate requests of one key are admitted.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict

import msgspec
from django.db import connection

from hetsched.storage.statements import fetch
from hetsched.storage.write_lock import write_lock

from .models import Bucket

_MOST_IN_MEMORY = 10_000


class Limit(msgspec.Struct, frozen=True):
    """Rate limit in requests per minute with bursts of up to `burst` requests; unlimited if `per_minute` is 0."""

    per_minute: float
    burst: int

    @property
    def token_micros(self) -> int:
        """Return the time in microseconds in which one token is replenished."""
        return math.ceil(60_000_000 / self.per_minute)


class RateLimitResult(msgspec.Struct, frozen=True):
    """Result of taking tokens: admission, remaining tokens, and the seconds until a retry may be admitted."""

    admitted: bool
    remaining: int
    wait_seconds: int


_NOW = {
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000",
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)",
}
_GREATEST = {"sqlite": "max", "postgresql": "greatest"}


def take(key: str, limit: Limit, amount: int = 1) -> RateLimitResult:
    """Take `amount` tokens from a bucket that all processes share, or none if it has too few.

    An amount larger than the bucket takes the whole bucket. The tokens are taken by one statement in a separate
    transaction.
    """
    each = limit.token_micros
    cost, most = each * min(amount, limit.burst), each * limit.burst
    table, now, greatest = Bucket._meta.db_table, _NOW[connection.vendor], _GREATEST[connection.vendor]
    # Ignore a `full_at` that is further ahead than the time to fill an empty bucket: the clock was set back since then.
    since = f"CASE WHEN {table}.full_at - {now} > %s THEN 0 ELSE {table}.full_at END"
    later = f"{greatest}({since}, {now}) + %s"
    with write_lock():
        taken = fetch(
            f"INSERT INTO {table} (key, full_at) VALUES (%s, {now} + %s) "  # noqa: S608 - no value of a request
            f"ON CONFLICT (key) DO UPDATE SET full_at = {later} WHERE {later} - {now} <= %s "
            f"RETURNING full_at - {now}",
            [key, cost, most, cost, most, cost, most],
        )
        if taken:
            return RateLimitResult(True, max(0, most - taken[0][0]) // each, 0)
        found = fetch(f"SELECT full_at - {now} FROM {table} WHERE key = %s", [key])  # noqa: S608
    ahead = found[0][0] if found else 0
    return RateLimitResult(False, max(0, most - ahead) // each, max(1, math.ceil((ahead + cost - most) / 1_000_000)))


def delete_full_buckets() -> int:
    """Delete the buckets that are full again."""
    table, now = Bucket._meta.db_table, _NOW[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {table} WHERE full_at < {now}")  # noqa: S608
        return int(cursor.rowcount)


class LocalBuckets:
    """Rate limit buckets in the memory of this process; the least recently used are evicted first."""

    def __init__(self) -> None:
        self._full_at: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, key: str, limit: Limit) -> RateLimitResult:
        """Take one token if available."""
        turn = 60.0 / limit.per_minute
        most = turn * limit.burst
        with self._lock:
            now = time.monotonic()
            ahead = max(self._full_at.get(key, now), now) - now + turn
            if ahead > most + 1e-9:
                return RateLimitResult(False, 0, max(1, math.ceil(ahead - most)))
            self._full_at[key] = now + ahead
            self._full_at.move_to_end(key)
            if len(self._full_at) > _MOST_IN_MEMORY:
                self._full_at.popitem(last=False)
            return RateLimitResult(True, int((most - ahead) / turn), 0)

    def clear(self) -> None:
        with self._lock:
            self._full_at.clear()
