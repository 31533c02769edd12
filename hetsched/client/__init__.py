"""Python client: one server, one token, typed responses. The command line is built on it.

May import: hetsched.contracts, msgspec, httpx, the standard library.
Never: another hetsched package, Django, printing, decisions of its own.
"""

from .client import Client
from .documents import (
    Accepted,
    BatchAnswer,
    ClusterRow,
    Decision,
    DecisionRow,
    DeliveryRow,
    Hold,
    HoldRow,
    NodeRow,
    PodRow,
    PodWhy,
    QueuedPod,
    Workload,
    WorkloadRow,
)
from .errors import Refused, ServerUnavailable
from .waiting import End, Goal, Waited

__all__ = [
    "Accepted",
    "BatchAnswer",
    "Client",
    "ClusterRow",
    "Decision",
    "DecisionRow",
    "DeliveryRow",
    "End",
    "Goal",
    "Hold",
    "HoldRow",
    "NodeRow",
    "PodRow",
    "PodWhy",
    "QueuedPod",
    "Refused",
    "ServerUnavailable",
    "Waited",
    "Workload",
    "WorkloadRow",
]
