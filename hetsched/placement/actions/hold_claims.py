"""Give held room to a submission: the part of holds that a submission needs, inside its own transaction.

Rule: one statement moves a hold from *held* to *claimed*, if it has not ended by the database's clock. From then on it
waits for the pods of that submission, not for its end.
Invariant: of two submissions that name the same hold, or of one and its expiry, one has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from django.db.models import DateTimeField, F
from django.db.models.functions import Greatest, Now

from hetsched.contracts.errors import InputError
from hetsched.placement.holds import Hold
from hetsched.placement.models import Workload

CLAIMED = timedelta(minutes=10)  # how long the pods of a submission may take to come for their room


def claim_hold(hold_id: str, workload: Workload) -> None:
    """Give a hold to the pods of a submission, inside the caller's transaction.

    Raises: InputError `HoldOver` where it ended, or another submission was faster.
    """
    rows = Hold.objects.filter(pk=hold_id, cluster=workload.cluster_id, state=Hold.HELD, expires_at__gt=Now())
    until = Greatest(F("expires_at"), Now() + CLAIMED, output_field=DateTimeField())
    if not rows.update(state=Hold.CLAIMED, workload=workload, expires_at=until):
        raise InputError(
            "HoldOver",
            f"hold {hold_id[:60]} is over, or another submission has it",
            place="hold",
            hint="Hold room anew, or submit without it",
        )


def claimed_by(workload_ids: Iterable[str]) -> dict[str, str]:
    """Return which of these workloads have claimed which hold."""
    rows = Hold.objects.filter(workload_id__in=workload_ids, state=Hold.CLAIMED)
    return {workload_id: pk for pk, workload_id in rows.values_list("id", "workload_id") if workload_id}
