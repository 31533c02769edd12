"""Holders of node resources: pods of workloads, other pods, and the reserved capacity of holds."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec
from django.urls import reverse
from django.utils.translation import gettext as _

from hetsched.contracts.units import CPU, MEMORY
from hetsched.placement.models import Pod, Reservation
from hetsched.placement.models.holds import MARK

from ..amounts import amount_words


class Holder(msgspec.Struct, frozen=True):
    """Name and page of a holder; `is_reserved` is true if the holder is the reserved capacity of a hold."""

    name: str
    url: str
    is_reserved: bool


def holder_of(pod: Pod) -> Holder:
    """Return the holder of the resources that are reserved for a pod."""
    if pod.origin == Pod.HELD:
        name = _("reserved for %(pod)s") % {"pod": pod.key.rpartition(MARK)[0] or pod.key}
        return Holder(name, reverse("hold", args=[pod.hold_id]), True)
    if pod.workload_id is None:
        return Holder(pod.key, "", False)
    return Holder(pod.key, f"{reverse('workload', args=[pod.workload_id])}?pod={quote(pod.key)}", False)


def holders(reservations: list[Reservation]) -> dict[str, Holder]:
    """Return the holders of a node's resources by pod key."""
    return {reservation.pod.key: holder_of(reservation.pod) for reservation in reservations}


def reservation_row(reservation: Reservation) -> dict[str, Any]:
    """Return the amounts of one reservation as a table row."""
    requests = reservation.requests
    holder = holder_of(reservation.pod)
    rest = {name: amount for name, amount in requests.items() if name not in (CPU, MEMORY, "pods")}
    return {
        "pod": reservation.pod,
        "holder": holder,
        "problem": "" if holder.is_reserved else reservation.pod.message,
        "since": reservation.created_at,
        "cpu": amount_words(CPU, requests.get(CPU, 0)),
        "memory": amount_words(MEMORY, requests.get(MEMORY, 0)),
        "rest": [(name, amount_words(name, amount)) for name, amount in sorted(rest.items())],
        "gpus": reservation.allocation.gpus,
        "zones": reservation.allocation.zones,
    }
