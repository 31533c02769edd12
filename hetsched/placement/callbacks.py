"""Tell whoever submitted a workload how it fares, by a POST to the address they gave.

Problem: an address in a request makes the server call hosts of the caller's choice.
Rule: only hosts that the deployment names (`HETSCHED_CALLBACK_HOSTS`, as host or host:port) are ever called, by the
guard of `hetsched.adapters.outbound`: checked when the workload is submitted and again in each call. Every state but
*pending* is told, the latest one only; a call that fails is tried again after 2, 4, 8, … up to 300 seconds, eight times
in all.
Invariant: a state is due until it was told or given up, so a lost wake-up is found by the sweep.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from hetsched.adapters.outbound import Allowed, Refused, check
from hetsched.contracts.errors import InputError

from .lifecycle import State
from .models import Workload

MOST_ATTEMPTS = 8
LONGEST_WAIT_SECONDS = 300


def allowed() -> Allowed:
    """Return whom the deployment lets us tell."""
    hosts = frozenset(settings.HETSCHED_CALLBACK_HOSTS) - {"*"}
    return Allowed(hosts, hosts)


def is_allowed(url: str) -> bool:
    """Tell whether the deployment lets us call this address, before it is looked up."""
    try:
        check(url, allowed())
    except Refused:
        return False
    return True


def refuse_foreign(url: str) -> None:
    """Refuse an address that we would never call.

    Raises: InputError `CallbackNotAllowed`.
    """
    if url and not is_allowed(url):
        raise InputError(
            "CallbackNotAllowed",
            f"this server does not call {_host(url)!r}",
            place="callbackUrl",
            hint="Its operator lists the hosts it may call in HETSCHED_CALLBACK_HOSTS",
        )


def _host(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "")[:100]
    except ValueError:
        return ""


def due() -> QuerySet[Workload]:
    """Return the workloads whose present state is still to be told."""
    now = Q(callback_not_before=None) | Q(callback_not_before__lte=timezone.now())
    rows = Workload.objects.filter(now).exclude(callback_url="").exclude(state=State.PENDING.value)
    return rows.exclude(state=F("callback_state"))


def message(workload: Workload) -> dict[str, Any]:
    """Return what is told: enough to know where to look."""
    return {"id": workload.pk, "name": workload.name, "state": workload.state, "at": workload.history[-1][1]}


def note(workload: Workload, *, told: bool) -> None:
    """Keep what came of telling the state that `workload` shows; a state that came meanwhile stays due."""
    row = Workload.objects.filter(pk=workload.pk)
    if told or workload.callback_attempts + 1 >= MOST_ATTEMPTS:
        row.update(callback_state=workload.state, callback_attempts=0, callback_not_before=None)
        return
    wait = timedelta(seconds=min(2 ** (workload.callback_attempts + 1), LONGEST_WAIT_SECONDS))
    row.update(callback_attempts=F("callback_attempts") + 1, callback_not_before=timezone.now() + wait)
