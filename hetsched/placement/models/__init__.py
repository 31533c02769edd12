"""Tables of the app, one module for each group."""

from .charges import Charge
from .device_allocations import DevicePluginAllocation
from .holds import Hold
from .nominations import Eviction, Nomination, PartiallyBoundGang, Preemption, RejectedCommit
from .rebalances import Rebalance, RebalanceMove
from .rejections import Rejection
from .reservations import Reservation, ReservedCard, ReservedCpu, ReservedDevice
from .shadows import Judgement, Shadow
from .webhooks import CallbackHost, Delivery, DeliveryAttempt, SigningSecret, Webhook
from .workloads import Decision, ForgottenDecision, IdempotencyKey, Pod, SubmittedObject, Workload, new_workload_id

__all__ = [
    "CallbackHost",
    "Charge",
    "Decision",
    "Delivery",
    "DeliveryAttempt",
    "DevicePluginAllocation",
    "Eviction",
    "ForgottenDecision",
    "Hold",
    "IdempotencyKey",
    "Judgement",
    "Nomination",
    "PartiallyBoundGang",
    "Pod",
    "Preemption",
    "Rebalance",
    "RebalanceMove",
    "RejectedCommit",
    "Rejection",
    "Reservation",
    "ReservedCard",
    "ReservedCpu",
    "ReservedDevice",
    "Shadow",
    "SigningSecret",
    "SubmittedObject",
    "Webhook",
    "Workload",
    "new_workload_id",
]
