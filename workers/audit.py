"""Seal the audit trail, and look at what is sealed again, a little each time."""

from __future__ import annotations

from celery import shared_task

from hetsched.journal.chain import look_again, seal_new


@shared_task(name="workers.audit.run")
def run() -> int:
    """Seal the entries that are old enough; return how many seals that were looked at again do not fit."""
    seal_new()
    return look_again()
