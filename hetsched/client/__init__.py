"""Python client of one server with one token and typed responses; the command line uses it.

May import: hetsched.contracts, msgspec, httpx, the standard library.
Must not import other hetsched packages or Django, print output, or make scheduling decisions.
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
