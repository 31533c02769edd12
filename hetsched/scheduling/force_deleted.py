"""Name the force-deleted pods whose resources prevent the placement of a pending pod on a node.

A force-deleted pod holds its resources until its grace period is over (see `actions.terminating_pods`). A pending pod
that would fit a node without these pods gets the reason `HeldByForceDeletedPod` with their names and their release
time. At most `_MOST_NODES` nodes are tried per explanation, those with the earliest release first.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

import msgspec

from hetsched.contracts.api.decision import Reason
from hetsched.contracts.message import Message, format_pods
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.times import rfc3339
from hetsched.engine.framework.cycle import Scheduler
from hetsched.engine.framework.post_filter import Attempt
from hetsched.placement.cluster_snapshot import ClusterSnapshot
from hetsched.placement.models.holds import MARK
from hetsched.placement.queries.orphaned_pods import orphaned_pods

HELD = "HeldByForceDeletedPod"
_MOST_NODES = 4


class _ForceDeletedPod(msgspec.Struct, frozen=True, order=True):
    """One force-deleted pod: its release time, `namespace/name`, and its key in the snapshot."""

    until: str
    pod: str
    key: str


class ForceDeleted:
    """The force-deleted pods of one cluster, read for one batch."""

    def __init__(self, snapshot: ClusterSnapshot, cluster_id: int) -> None:
        self._snapshot = snapshot
        self._cluster_id = cluster_id

    @cached_property
    def _by_row(self) -> dict[int, list[_ForceDeletedPod]]:
        found: dict[int, list[_ForceDeletedPod]] = defaultdict(list)
        rows = orphaned_pods(self._cluster_id).values_list("namespace", "name", "not_before")
        for namespace, name, until in rows:
            key = f"{namespace}/{name}"
            placed = self._snapshot.state.placed_pods.get(key)
            if placed is not None and until is not None:
                found[placed.row].append(_ForceDeletedPod(rfc3339(until)[:19] + "Z", key.partition(MARK)[0], key))
        return {row: sorted(held) for row, held in sorted(found.items(), key=lambda item: max(item[1]))}

    def reason(self, scheduler: Scheduler, pod: PodSpec) -> tuple[Reason, Message] | None:
        """Return why a pod waits for force-deleted pods: the reason, and a sentence for readers of the pod's namespace.

        Return None if no force-deleted pod blocks the pod.
        """
        if not self._by_row:
            return None
        state = self._snapshot.state
        attempt = Attempt(scheduler, state.compile(pod))
        holding: list[_ForceDeletedPod] = []
        nodes = 0
        for held in list(self._by_row.values())[:_MOST_NODES]:
            placed_pods = [placed for deleted in held if (placed := state.forget(deleted.key)) is not None]
            try:
                fits = bool(placed_pods) and attempt.fits(placed_pods[0].row)
            finally:
                for placed in placed_pods:
                    state.restore(placed)
            if fits:
                nodes += 1
                holding += held
        if not holding:
            return None
        names = list(dict.fromkeys(deleted.pod for deleted in sorted(holding)))
        own = [name for name in names if name.startswith(f"{pod.namespace}/")]
        until = max(holding).until
        return Reason(HELD, "ledger", nodes, _sentence(names, len(names), until)), _sentence(own, len(names), until)


def _sentence(names: list[str], count: int, until: str) -> Message:
    """Return a sentence that names the first few pods, or no pods if all of them are in other namespaces."""
    if not names:
        return Message("held by a force-deleted pod of another namespace until {time}", time=until)
    return Message("held by force-deleted pod {pods} until {time}", pods=format_pods(names, count=count), time=until)
