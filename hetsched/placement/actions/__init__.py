"""The only writers of workloads, pods, decisions and reservations; each action is one transaction.

May import: what hetsched.placement may.
Never: an engine run or an external call inside a transaction.
"""

from hetsched.inventory.ledger import Conflict, Contradiction

from .decisions import Nominated, ReservationUse, Result, bindable, record
from .device_allocations import CardsFollowed, follow_actual_cards
from .extender_bookings import book_asked
from .holds import (
    CreatedHold,
    HoldPart,
    cancel_hold,
    end_holds,
    extend,
    forget_holds,
    held_already,
    hold,
    submit_as_planned,
)
from .live_submissions import submit_live
from .progress import begin_binding, cancel, confirm, reject, release, retry, set_priority, start
from .removed_devices import approve_fact
from .retention import forget_changed, forget_charged, forget_finished, forget_summaries
from .submissions import Submission, submit
from .transfer import export_cluster, import_cluster
from .watch.batches import follow
from .watch.pod_transitions import BatchOutcome

__all__ = [
    "BatchOutcome",
    "CardsFollowed",
    "Conflict",
    "Contradiction",
    "CreatedHold",
    "HoldPart",
    "Nominated",
    "ReservationUse",
    "Result",
    "Submission",
    "approve_fact",
    "begin_binding",
    "bindable",
    "book_asked",
    "cancel",
    "cancel_hold",
    "confirm",
    "end_holds",
    "export_cluster",
    "extend",
    "follow",
    "follow_actual_cards",
    "forget_changed",
    "forget_charged",
    "forget_finished",
    "forget_holds",
    "forget_summaries",
    "held_already",
    "hold",
    "import_cluster",
    "record",
    "reject",
    "release",
    "retry",
    "set_priority",
    "start",
    "submit",
    "submit_as_planned",
    "submit_live",
]
