"""State that all checks of a report share, and the groups of pods to which findings refer.

Many pods have the same fault, because a controller creates equal pods. A finding therefore refers to a group: the gang
of the pods, else their controller, else the pod itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from hetsched.contracts.api.cluster_report import MOST_NAMED, ClusterFinding, ClusterObservation
from hetsched.contracts.api.findings import Level
from hetsched.contracts.message import Message
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.engine.cluster.placed_pod import PlacedPod
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.policy import Policy
from hetsched.engine.simulation.movable_pods import runs_per_node


class AffectedObject(NamedTuple):
    """Kind and name of the object of a finding; the name is empty for the cluster."""

    kind: str
    name: str

    @staticmethod
    def of(pod: PodSpec) -> AffectedObject:
        """Return the owner of a pod: its gang, else its controller, else the pod itself."""
        if pod.gang is not None:
            return AffectedObject("PodGroup", f"{pod.namespace}/{pod.gang.name}")
        kind, _, name = pod.controller.partition("/")
        return AffectedObject(kind, f"{pod.namespace}/{name}") if name else AffectedObject("Pod", pod.key)


class CheckedCluster:
    """One cluster with the policy of the report and the filters of kube-scheduler.

    Checks do not change the state.
    """

    def __init__(self, observation: ClusterObservation, policy: Policy, kube: Policy) -> None:
        self.observation = observation
        self.content: ClusterContent = observation.content
        self.policy = policy
        self.kube = kube
        self.state = ClusterState.of(self.content)

    @cached_property
    def kube_scheduler(self) -> Scheduler:
        """A scheduler with the filters of kube-scheduler on the state."""
        return Scheduler(self.state, self.kube)

    @cached_property
    def bound(self) -> list[PlacedPod]:
        """The placed pods that a scheduler placed: without static pods and pods of DaemonSets."""
        return [placed for placed in self.state.placed_pods.values() if not runs_per_node(placed.pod)]

    @cached_property
    def gpu_shapes(self) -> dict[Shape, int]:
        """The shapes of running and pending pods that request GPUs, with the number of pods of each."""
        counts: dict[Shape, int] = {}
        pods = [placed.pod for placed in self.state.placed_pods.values()]
        for pod in [*pods, *self.content.pending]:
            if pod.shape.gpu is not None and pod.shape.gpu.count and not pod.problems:
                counts[pod.shape] = counts.get(pod.shape, 0) + 1
        return counts


def finding(
    code: str,
    level: Level,
    about: AffectedObject,
    message: Message,
    remedy: Message,
    *,
    evidence: Sequence[Message] = (),
    affected: Sequence[str] = (),
) -> ClusterFinding:
    """Return a finding; only the first `MOST_NAMED` affected objects are named."""
    names = sorted(set(affected))
    return ClusterFinding(
        code, level, about.kind, about.name, message, tuple(dict.fromkeys(evidence)), remedy, tuple(names[:MOST_NAMED]),
        max(len(names), 1),
    )  # fmt: skip
