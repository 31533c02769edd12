"""Tables of the app, one module for each group."""

from .charges import Charge
from .device_allocations import HandedOut
from .holds import Hold
from .nominations import CommitRefusal, Eviction, HalfGang, Nomination, Preemption
from .rebalances import Rebalance, RebalanceMove
from .rejections import Rejection
from .reservations import Reservation, ReservedCard, ReservedCpu, ReservedDevice
from .shadows import Judgement, Shadow
from .webhooks import CallbackHost, Delivery, DeliveryAttempt, SigningSecret, Webhook
from .workloads import Decision, ForgottenDecision, IdempotencyKey, Pod, SubmittedObject, Workload, new_workload_id

__all__ = [
    "CallbackHost",
    "Charge",
    "CommitRefusal",
    "Decision",
    "Delivery",
    "DeliveryAttempt",
    "Eviction",
    "ForgottenDecision",
    "HalfGang",
    "HandedOut",
    "Hold",
    "IdempotencyKey",
    "Judgement",
    "Nomination",
    "Pod",
    "Preemption",
    "Rebalance",
    "RebalanceMove",
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
