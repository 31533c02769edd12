"""Periodic task that renews the service account tokens of connections; see `hetsched.inventory.token_renewal`."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from hetsched.inventory import token_renewal


@shared_task(name="workers.renew_tokens.run")
def run() -> int:
    """Renew the tokens that are due; return their number."""
    return token_renewal.renew_tokens(timezone.now())
