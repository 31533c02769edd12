"""Claims of holds by submissions, inside the transaction of the submission.

One UPDATE moves a hold from *held* to *claimed* if it has not expired by the database's clock. A claimed hold keeps its
capacity for at least `CLAIMED`, so that the pods of the submission can use it; then the unused capacity is freed.
Invariant: of two submissions that name the same hold, or of a submission and the expiry, exactly one gets the hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from django.db.models import DateTimeField, F
from django.db.models.functions import Greatest, Now

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.placement.models import Workload
from hetsched.placement.models.holds import Hold

CLAIMED = timedelta(minutes=10)  # minimum time for the pods of a submission to use the reserved capacity


def claim_hold(hold_id: str, workload: Workload) -> None:
    """Claim a hold for the pods of a submission, inside the caller's transaction.

    Raises: InputError `HoldOver` if the hold has ended or another submission claimed it first.
    """
    rows = Hold.objects.filter(pk=hold_id, cluster=workload.cluster_id, state=Hold.HELD, expires_at__gt=Now())
    until = Greatest(F("expires_at"), Now() + CLAIMED, output_field=DateTimeField())
    if not rows.update(state=Hold.CLAIMED, workload=workload, expires_at=until):
        raise InputError(
            "HoldOver",
            Message("hold {hold} has ended or belongs to another submission", hold=hold_id[:60]),
            place="hold",
            hint="Create a new hold, or submit without a hold",
        )


def claimed_holds(workload_ids: Iterable[str]) -> dict[str, str]:
    """Return the ids of the claimed holds by workload id."""
    rows = Hold.objects.filter(workload_id__in=workload_ids, state=Hold.CLAIMED)
    return {workload_id: pk for pk, workload_id in rows.values_list("id", "workload_id") if workload_id}
