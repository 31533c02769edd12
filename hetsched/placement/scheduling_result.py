"""The result of a scheduling cycle for one pod, before it is recorded."""

from __future__ import annotations

import msgspec

from hetsched.contracts.api.decision import Evicted, NodeOutcome, Reason, Verdict
from hetsched.contracts.message import Message
from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.waits import WaitsFor
from hetsched.engine.framework.queueing_hints import for_anything

from .scheduling_queue.active_queue import PendingPod


class NominatedNode(msgspec.Struct, frozen=True):
    """The node and the allocation of a nominated pod that waits for the eviction of its victims.

    `is_new` is False if the nomination exists already and continues.
    """

    node_id: int
    node_name: str
    allocation: Allocation
    is_new: bool


class ReservationUse(msgspec.Struct, frozen=True):
    """The use of a hold's capacity by a placed pod: id and `namespace/name` of the pod row that held this capacity."""

    pod_id: int
    key: str


class Result(msgspec.Struct, frozen=True):
    """The decision about one pending pod. `node_id` is None unless the pod was placed; `evicted` lists the victims.

    If `nominated` is set, the pod waits, and `evicted` lists the victims whose eviction is not requested yet. A gang
    member may be nominated without victims of its own: it waits for those of the other members. `overridden` lists pods
    whose nominations are superseded. `used_reservation` is the hold's reservation for this pod, which is freed when the
    pod's resources are reserved. `reserved_spec` is the spec to store with the pod's own reservation if it differs from
    the scheduled spec: it also has the labels that the API server will copy from the node.
    """

    waiting: PendingPod
    verdict: Verdict
    summary: Message
    policy_name: str
    policy_version: int
    node_id: int | None = None
    node_name: str = ""
    allocation: Allocation | None = None
    score: float | None = None
    reasons: tuple[Reason, ...] = ()
    top: tuple[NodeOutcome, ...] = ()
    evicted: tuple[Evicted, ...] = ()
    waits_for: tuple[WaitsFor, ...] = for_anything("scheduler", Message("a retry"))
    nominated: NominatedNode | None = None
    overridden: tuple[str, ...] = ()
    used_reservation: ReservationUse | None = None
    reserved_spec: PodSpec | None = None

    @property
    def nominated_node(self) -> str:
        return "" if self.nominated is None else self.nominated.node_name
