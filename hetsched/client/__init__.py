"""Lives here: the Python client: one server, one token, typed answers. The command line is built on it.

May import: hetsched.contracts, msgspec, httpx, the standard library.
Never: another hetsched package, Django, printing, a decision of its own.
"""

from .client import Client
from .documents import (
    Accepted,
    ClusterRow,
    Decision,
    DecisionRow,
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
    "Client",
    "ClusterRow",
    "Decision",
    "DecisionRow",
    "End",
    "Goal",
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
