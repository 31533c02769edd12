"""Seal the audit trail and verify earlier seals, a few per run."""

from __future__ import annotations

from celery import shared_task

from hetsched.journal.chain import seal_new, verify_oldest


@shared_task(name="workers.audit.run")
def run() -> int:
    """Seal the entries that are old enough; return the number of verified seals that do not match."""
    seal_new()
    return verify_oldest()
