"""Explanations of the pods that a batch rejects.

A diagnosis evaluates all filters on all nodes twice. Equal pods that are rejected one after the other therefore share a
diagnosis if nothing is placed between them.
"""

from __future__ import annotations

import msgspec

from hetsched.contracts.api.decision import Reason, Verdict
from hetsched.contracts.message import Message, joined, replace_pod
from hetsched.contracts.objects.workload import PodSpec, Shape
from hetsched.engine.explain.diagnosis import diagnose
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.diagnosis import Diagnosis
from hetsched.placement.cluster_snapshot import ClusterSnapshot

from ..force_deleted import ForceDeleted


class _Explanation(msgspec.Struct, frozen=True):
    """The explanation of a rejection, and the force-deleted pods that block the pod."""

    diagnosis: Diagnosis
    held: tuple[Reason, Message] | None


class RejectionExplanations:
    """The explanations of one batch."""

    def __init__(self, snapshot: ClusterSnapshot, cluster_id: int) -> None:
        self._force_deleted = ForceDeleted(snapshot, cluster_id)
        # by policy, shape, and the position in the state's change log
        self._known: dict[tuple[str, Shape, int, int], tuple[PodSpec, _Explanation]] = {}

    def explain(self, scheduler: Scheduler, pod: PodSpec) -> Diagnosis:
        """Explain why a pod is rejected on the current state."""
        group = scheduler.state.gangs.group_of(pod)
        if not pod.ready or (group is not None and group.refusal is not None):
            return diagnose(scheduler, pod)
        if pod.owner in scheduler.state.avoided:
            return diagnose(scheduler, pod)  # the reasons depend on the pod's owner and are not shared
        known = self._known.get(_key(scheduler, pod))
        if known is None or not _is_shared(known[0], pod):
            diagnosis = diagnose(scheduler, pod)
            held = self._force_deleted.reason(scheduler, pod) if diagnosis.verdict is Verdict.NOT_NOW else None
            # Compute the key again: the change log has grown, because force-deleted pods were removed and restored.
            known = self._known[_key(scheduler, pod)] = (pod, _Explanation(diagnosis, held))
        _, explanation = known
        found, summary = explanation.diagnosis, replace_pod(explanation.diagnosis.summary, pod.key)
        if explanation.held is None:
            return msgspec.structs.replace(found, summary=summary)
        reason, sentence = explanation.held
        reasons, candidates = (*found.reasons, reason), found.candidates and (*found.candidates, ())
        summary = joined("; ", [summary, sentence])
        return msgspec.structs.replace(found, summary=summary, reasons=reasons, candidates=candidates)


def _key(scheduler: Scheduler, pod: PodSpec) -> tuple[str, Shape, int, int]:
    state = scheduler.state
    return scheduler.policy.spec.name, pod.shape, state.epoch, len(state.log)


def _is_shared(pod: PodSpec, other: PodSpec) -> bool:
    """Return True if the explanation of a rejected pod also applies to a second rejected pod of the same shape."""
    return (pod.namespace, pod.labels, pod.gang) == (other.namespace, other.labels, other.gang)
