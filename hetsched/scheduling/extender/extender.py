"""Responses to the kube-scheduler of one cluster: filter, prioritize, preempt.

Every response is computed on the up-to-date scheduler cache. A pod whose filter call found feasible nodes holds the
slot until it is bound; the filter call of the next pod waits until then (see `pod_slots`).
"""

from __future__ import annotations

import time
from concurrent.futures import Executor

from django.utils import timezone

from hetsched.adapters.kubernetes.extender_messages import (
    Args,
    FilterResult,
    HostPriority,
    MetaPod,
    MetaVictims,
    PreemptionArgs,
    PreemptionResult,
    read_pod,
)
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.framework.extender_verbs import FilteredNodes, filter_nodes, find_victims, prioritize_nodes
from hetsched.inventory.models import Cluster
from hetsched.placement.models import Pod

from .binding import Binder

_POLL_SECONDS, _LOOK_SECONDS = 0.02, 0.1
_IMPATIENCE = 9  # after waiting t seconds for capacity that was just freed, do not wait again for 9 t seconds


class Extender(Binder):
    """The extender of one cluster; each call must respond within `seconds`. Thread-safe."""

    def __init__(self, cluster: Cluster, seconds: float, threads: Executor | None = None) -> None:
        super().__init__(cluster, seconds, threads)
        self._no_retry_until = 0.0

    def filter(self, args: Args) -> FilterResult:
        """Return the feasible nodes, as names or objects as in the request. Raises: InputError."""
        nodes = args.named()
        until = time.monotonic() + self.seconds
        cluster, reader = self._cluster()
        spec = read_pod(bytes(args.pod), reader)
        pod = self._pod(cluster, spec)
        self.turns.begin(pod.uid, until - self.seconds / 2)
        fits = False
        try:
            answer = self._filter(self._with_images(cluster, spec, pod), list(nodes), until)
            fits = bool(answer.feasible)
        finally:
            if not fits:
                self.turns.end(pod.uid)
        result = FilterResult(failed_nodes=answer.rejected, failed_and_unresolvable_nodes=answer.unresolvable)
        if args.node_names is not None:
            result.node_names = answer.feasible
        else:
            result.nodes = {"items": [nodes[name] for name in answer.feasible]}
        return result

    def prioritize(self, args: Args) -> list[HostPriority]:
        """Return the score of each node. Raises: InputError."""
        nodes = args.named()
        until = time.monotonic() + self.seconds
        cluster, reader = self._cluster()
        pod = self._pod(cluster, read_pod(bytes(args.pod), reader))
        with self._asking(pod, until) as asking:
            scores = prioritize_nodes(asking.scheduler, pod.spec, list(nodes))
        return [HostPriority(name, score) for name, score in scores.items()]

    def preempt(self, args: PreemptionArgs) -> PreemptionResult:
        """Return the victims on each node that kube-scheduler offers. Raises: InputError."""
        offered = args.offered()
        until = time.monotonic() + self.seconds
        cluster, reader = self._cluster()
        pod = self._pod(cluster, read_pod(bytes(args.pod), reader))
        uids = {name: [one.uid for one in victims.pods or ()] for name, victims in offered.items()}
        with self._asking(pod, until) as asking:
            chosen = find_victims(asking.scheduler, pod.spec, uids)
        return PreemptionResult(
            {
                name: MetaVictims([MetaPod(uid) for uid in chosen_uids], offered[name].num_pdb_violations)
                for name, chosen_uids in chosen.items()
                if chosen_uids
            }
        )

    def _with_images(self, cluster: Cluster, spec: PodSpec, pod: Pod) -> Pod:
        """Wait until the pod's images have been read, at most a quarter of `seconds`, and return the updated pod."""
        until = time.monotonic() + self.seconds / 4
        while pod.images_until and pod.images_until > timezone.now() and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
            pod = self._pod(cluster, spec)
        return pod

    def _filter(self, pod: Pod, names: list[str], until: float) -> FilteredNodes:
        """Return the feasible nodes; if there are none at present, wait briefly for capacity that was just freed.

        kube-scheduler often sees the deletion of a pod shortly before hetsched does, and retries only after another
        event.
        """
        began = time.monotonic()
        retry_until = began + self.seconds / 8 if began > self._no_retry_until else began
        while True:
            with self._asking(pod, until) as asking:
                answer, revision = filter_nodes(asking.scheduler, pod.spec, names), asking.snapshot.revision
            if answer.feasible or not answer.rejected or not self._is_changed(revision, retry_until):
                spent = time.monotonic() - began if retry_until > began else 0.0
                self._no_retry_until = max(self._no_retry_until, time.monotonic() + _IMPATIENCE * spent)
                return answer

    def _is_changed(self, revision: int, until: float) -> bool:
        """Wait until the cluster's revision exceeds `revision`; return False if it does not before `until`."""
        while time.monotonic() < until:
            if Cluster.objects.filter(pk=self.cluster_id, revision__gt=revision).exists():
                return True
            time.sleep(_POLL_SECONDS)
        return False
