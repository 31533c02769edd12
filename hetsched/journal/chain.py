"""Tamper evidence for the audit trail: a chain of digests that shows changed, deleted and inserted entries.

A database trigger rejects changes of an entry, but the owner of the database can drop the trigger. Chaining each entry
to the previous entry would serialize all writers. Entries are therefore sealed later, in batches of a few hundred, in
order of their IDs:

    digest(n) = HMAC-SHA-256(key, digest(n - 1) | number of entries | each entry as JSON)

The key is derived from SECRET_KEY; without SECRET_KEY the digest is plain SHA-256. Only entries older than `SETTLED`
are sealed, because by then every transaction that wrote a lower ID has ended. Verification reads the entries and
computes the digests again. Each run verifies the seals with the oldest verification, so every entry is verified
eventually at a bounded cost per run.
Limits: entries younger than the last seal are not covered. Anyone who has SECRET_KEY can seal a forged trail. To detect
that, store the digest of the latest seal elsewhere: `hetsched audit verify` prints it, and each sealing logs it.
Source: Schneier and Kelsey, "Secure Audit Logs to Support Computer Forensics", 1999.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec
import structlog
from django.db import IntegrityError
from django.db.models import Min, QuerySet, Sum, TextField
from django.db.models.functions import Cast
from django.utils import timezone

from hetsched.contracts.documents import encode
from hetsched.contracts.message import Message, as_message
from hetsched.storage.sealed_secrets import derived
from hetsched.storage.write_lock import write_transaction

from .models import AuditEntry, AuditSeal

SETTLED = timedelta(minutes=2)
MOST_SEALED = 500
_PURPOSE = "audit chain"
_FIELDS = (
    "id",
    "at",
    "actor",
    "role",
    "action",
    "object_kind",
    "object_name",
    "stored_reason",
    "details",
    "request_id",
)
log = structlog.get_logger(__name__)


class Broken(msgspec.Struct, frozen=True, rename="camel"):
    """Range of audit entries (first and last ID) that does not match its seal."""

    first: int
    last: int
    problem: Message


class ChainState(msgspec.Struct, frozen=True, rename="camel"):
    """State of the seals of the audit trail; every seal was verified at `verified_since` or later.

    `head` is the digest of the latest seal. `keyed` is True if the digest uses a key.
    """

    sealed: int
    sealed_to: int | None
    sealed_at: datetime | None
    unsealed: int
    verified_since: datetime | None
    head: str
    keyed: bool
    broken: list[Broken]


def seal_new(*, settled: timedelta = SETTLED) -> int:
    """Seal the entries that are old enough; return their number."""
    now, count = timezone.now(), 0
    while True:
        last = AuditSeal.objects.order_by("-id").first()
        entries = AuditEntry.objects.filter(id__gt=last.last_entry if last else 0)
        young = entries.filter(at__gt=now - settled).aggregate(first=Min("id"))["first"]
        rows = list(_stored(entries if young is None else entries.filter(id__lt=young))[:MOST_SEALED])
        if not rows:
            return count
        try:
            with write_transaction():
                made = AuditSeal.objects.create(
                    first_entry=rows[0].pk, last_entry=rows[-1].pk, entries=len(rows), key=_key_name(),
                    digest=_digest(last.digest if last else "", rows), verified_at=now,
                )  # fmt: skip
        except IntegrityError:
            return count  # another process sealed the entries first
        log.info("audit sealed", to=made.last_entry, entries=made.entries, digest=made.digest)
        count += len(rows)
        if len(rows) < MOST_SEALED:
            return count


def verify(seals: Iterable[AuditSeal] | None = None) -> Iterator[AuditSeal]:
    """Verify the given seals, or all seals in order; store and yield each result."""
    before: AuditSeal | None = None
    for seal in AuditSeal.objects.order_by("id").iterator() if seals is None else seals:
        if before is None or before.pk >= seal.pk or seals is not None:
            before = AuditSeal.objects.filter(pk__lt=seal.pk).order_by("-id").first()
        seal.problem = _problem(seal, before)
        seal.verified_at = timezone.now()
        seal.save(update_fields=["problem", "verified_at"])
        if seal.problem:
            log.error("audit trail broken", first=seal.first_entry, last=seal.last_entry, reason=seal.problem)
        yield seal
        before = seal


def verify_oldest(seals: int = 4) -> int:
    """Verify the seals whose last verification is oldest; return the number of seals that do not match."""
    return sum(bool(seal.problem) for seal in verify(list(AuditSeal.objects.order_by("verified_at", "id")[:seals])))


def chain_state() -> ChainState:
    """Return the last sealed entry, and the results of the last verifications."""
    last = AuditSeal.objects.order_by("-id").first()
    found = AuditSeal.objects.aggregate(entries=Sum("entries"), oldest=Min("verified_at"))
    broken = AuditSeal.objects.exclude(problem="").order_by("id")[:20]
    return ChainState(
        sealed=found["entries"] or 0,
        sealed_to=last.last_entry if last else None,
        sealed_at=last.sealed_at if last else None,
        unsealed=AuditEntry.objects.filter(id__gt=last.last_entry if last else 0).count(),
        verified_since=found["oldest"],
        head=last.digest if last else "",
        keyed=bool(last and last.key),
        broken=[Broken(seal.first_entry, seal.last_entry, as_message(seal.problem)) for seal in broken],
    )


def _problem(seal: AuditSeal, before: AuditSeal | None) -> Message:
    """Return the problem of a seal, or an empty message if the seal matches its entries."""
    if seal.key != _key_name():
        return Message("sealed with another SECRET_KEY; the current SECRET_KEY cannot verify the seal")
    after = before.last_entry if before else 0
    rows = list(_between(after, seal.last_entry))
    if len(rows) != seal.entries:
        return Message("{n} entries were sealed, but {m} entries exist", n=seal.entries, m=len(rows))
    if not hmac.compare_digest(_digest(before.digest if before else "", rows), seal.digest):
        return Message("an entry or the previous seal was changed after sealing")
    return Message("")


def _between(after: int, last: int) -> QuerySet[AuditEntry]:
    return _stored(AuditEntry.objects.filter(id__gt=after, id__lte=last))


def _stored(entries: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
    """Return entries in order, with the reason as stored, because the digest covers template and parameters."""
    return entries.annotate(stored_reason=Cast("reason", TextField())).order_by("id")


def _digest(before: str, rows: list[AuditEntry]) -> str:
    key = derived(_PURPOSE)
    hasher: Any = sha256() if key is None else hmac.new(key, digestmod=sha256)
    hasher.update(f"{before}|{len(rows)}".encode())
    for row in rows:
        hasher.update(b"\n" + encode([getattr(row, field) for field in _FIELDS], order="sorted"))
    return str(hasher.hexdigest())


def _key_name() -> str:
    """Return an ID of the key that does not reveal the key, or an empty string without a key."""
    key = derived(_PURPOSE)
    return "" if key is None else sha256(b"name of " + key).hexdigest()[:16]
