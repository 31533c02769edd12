"""The only writers of workloads, pods, decisions and reservations; each action is one transaction.

May import: the same packages as hetsched.placement.
Must not contain: an engine run or an external call inside a transaction.
"""

from hetsched.inventory.node_loads import Conflict, Contradiction
from hetsched.placement.topic_subscriptions import open_topic

from .decisions import can_bind_now, record
from .device_allocations import DeviceChanges, reconcile_devices
from .extender_reservations import reserve_requested
from .holds import (
    CreatedHold,
    HoldPart,
    cancel_hold,
    create_hold,
    end_holds,
    extend_hold,
    prune_holds,
    stored_hold,
    submit_with_hold,
)
from .live_submissions import submit_live
from .progress import begin_binding, cancel, confirm, reject, release, retry, set_priority, start
from .removed_devices import approve_fact
from .retention import (
    delete_ended_foreign_pods,
    delete_finished_workloads,
    delete_former_reservations,
    delete_summaries,
)
from .submissions import Submission, submit
from .transfer import export_cluster, import_cluster
from .watch.batches import apply_changes
from .watch.placed_arrivals import write_placement_effects
from .watch.pod_transitions import BatchOutcome

__all__ = [
    "BatchOutcome",
    "Conflict",
    "Contradiction",
    "CreatedHold",
    "DeviceChanges",
    "HoldPart",
    "Submission",
    "apply_changes",
    "approve_fact",
    "begin_binding",
    "can_bind_now",
    "cancel",
    "cancel_hold",
    "confirm",
    "create_hold",
    "delete_ended_foreign_pods",
    "delete_finished_workloads",
    "delete_former_reservations",
    "delete_summaries",
    "end_holds",
    "export_cluster",
    "extend_hold",
    "import_cluster",
    "open_topic",
    "prune_holds",
    "reconcile_devices",
    "record",
    "reject",
    "release",
    "reserve_requested",
    "retry",
    "set_priority",
    "start",
    "stored_hold",
    "submit",
    "submit_live",
    "submit_with_hold",
    "write_placement_effects",
]
