"""Bind pods to the nodes that another scheduler chose.

The pod is read from the API server and reserved on that node if it still fits. Only then is its Binding written, with
its allocation. The call waits for the write, but not beyond its timeout; the result is recorded in any case. A repeated
call for the same pod and node writes the same binding again.
Invariant: no transaction is open and no snapshot is locked during a call to the API server.
"""

from __future__ import annotations

import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial

import msgspec
import structlog
from django.conf import settings

from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.kubernetes.extender_messages import BindingArgs, read_pod
from hetsched.adapters.kubernetes.pods.binding import BindingOutcome, BindingRequest, BindingResult, bind
from hetsched.adapters.kubernetes.resources import PODS
from hetsched.adapters.kubernetes.typed_objects import decode_pod
from hetsched.adapters.objects.pods import PodReader
from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.engine.explain.decision_matrix import best
from hetsched.engine.framework.extender_verbs import filter_nodes
from hetsched.inventory.connections import api_of
from hetsched.inventory.models import Cluster
from hetsched.placement.actions import Conflict, Contradiction, reserve_requested
from hetsched.placement.lifecycle import HOLDING, LIVE
from hetsched.placement.models import Pod
from hetsched.placement.scheduling_queue.active_queue import PendingPod
from hetsched.placement.scheduling_result import Result
from hetsched.scheduling.binding_cycle import binding_requests, record_results

from .request_context import ExtenderCalls, RequestContext, close_expired_connections

MOST_CONFLICTS = 20
BINDINGS_AT_ONCE = 16
_LIVE = sorted(state.value for state in LIVE)
_CODES = {
    BindingResult.REFUSED: "BindingRefused",
    BindingResult.GONE: "PodGone",
    BindingResult.LOST: "PodBoundElsewhere",
    BindingResult.UNKNOWN: "BindingUnknown",
    BindingResult.UNPROVEN: "WrongUidsAccepted",
}
log = structlog.get_logger(__name__)


class Binder(ExtenderCalls):
    """The binder of one cluster's pods."""

    def __init__(self, cluster: Cluster, seconds: float, threads: Executor | None = None) -> None:
        super().__init__(cluster, seconds)
        self._threads = threads or ThreadPoolExecutor(BINDINGS_AT_ONCE, thread_name_prefix="extender bind")

    def bind(self, args: BindingArgs) -> None:
        """Reserve the pod on the node and write its binding.

        Raises: InputError with the reason if the pod is not bound.
        """
        until = time.monotonic() + self.seconds
        reserved = False
        try:
            cluster, reader = self._cluster()
            api = api_of(cluster)
            request = self._reserved(cluster, args) or self._reserve(cluster, args, api, reader, until)
            reserved = True
        finally:
            self.turns.end(args.pod_uid, bound=reserved)
        if request is None:
            return
        writing = self._threads.submit(bind, api, request)
        writing.add_done_callback(partial(_note, cluster))  # the response does not wait for this
        try:
            bound = writing.result(timeout=max(until - time.monotonic(), 0.1))
        except TimeoutError:
            message = (
                f"the API server has not responded; {args.pod_name} keeps its reservation on "
                f"{args.node} until the result is"
            )
            raise InputError("BindingUnknown", f"{message} known") from None
        if bound.result in _CODES:
            raise InputError(_CODES[bound.result], bound.message)

    def _reserved(self, cluster: Cluster, args: BindingArgs) -> BindingRequest | None:
        """Return the binding of a pod that has a reservation already, or None if it has none.

        Raises: InputError `PodIsOurs`, `PodReplaced` or `PodBookedElsewhere`.
        """
        live = Pod.objects.filter(cluster=cluster, namespace=args.pod_namespace, name=args.pod_name, state__in=_LIVE)
        row = live.select_related("node").defer("node__report").first()
        if row is None:
            return None
        if row.state not in HOLDING:
            raise InputError("PodIsOurs", f"{row.key} is in the scheduling queue of hetsched")
        if row.uid != args.pod_uid:
            raise InputError("PodReplaced", f"the previous pod named {row.key} has not ended yet")
        node = row.node.name if row.node else ""
        if node != args.node:
            raise InputError("PodBookedElsewhere", f"the binding of {row.key} to {node} is in flight")
        return next(iter(binding_requests([row.pk], tried=True)), None)

    def _reserve(
        self, cluster: Cluster, args: BindingArgs, api: Api, reader: PodReader, until: float
    ) -> BindingRequest | None:
        """Read the pod and reserve it on the node; return None if it is already bound there. Raises: InputError."""
        pod = self._waiting(cluster, args, api, reader)
        if pod is None:
            return None
        for _ in range(MOST_CONFLICTS):
            if time.monotonic() > until:
                break
            with self._asking(pod, until) as asking:
                try:
                    pod_id = _reserve_once(cluster, pod, args.node, asking)
                except Contradiction as refusal:
                    log.error("placement rejected by the database", pod=pod.key, node=args.node, reason=str(refusal))
                    message = f"the reservation of {pod.key} on {args.node} conflicts with an existing reservation"
                    raise InputError("LedgerRefused", message) from None
                except Conflict as conflict:
                    log.info("reservation lost", cluster=self.cluster_id, reason=str(conflict))
                    continue
            return binding_requests([pod_id])[0]
        raise InputError(
            "ExtenderBusy",
            f"{pod.key} could not be reserved: concurrent reservations changed the cluster at every attempt",
        )

    def _waiting(self, cluster: Cluster, args: BindingArgs, api: Api, reader: PodReader) -> Pod | None:
        """Read the pod from the API server; return None if it is bound to the chosen node already.

        Raises: InputError `NameInvalid`, `PodGone`, `PodBoundElsewhere` or `ApiServerAway`.
        """
        try:
            body = api.get(PODS.path(namespace=args.pod_namespace, name=args.pod_name))
        except ValueError as error:
            raise InputError("NameInvalid", str(error)) from None
        except ApiFailure as failure:
            code = "PodGone" if failure.status == 404 else "ApiServerAway"
            raise InputError(code, str(failure)) from None
        plain = decode_pod(body)
        key, uid = f"{args.pod_namespace}/{args.pod_name}", plain["metadata"].get("uid", "")
        node = plain["spec"].get("nodeName", "")
        if uid != args.pod_uid:
            raise InputError("PodGone", f"another pod now has the name {key}")
        if node and node != args.node:
            raise InputError("PodBoundElsewhere", f"{key} is already bound to {node}")
        return None if node else self._pod(cluster, read_pod(body, reader))


def _reserve_once(cluster: Cluster, pod: Pod, node: str, asking: RequestContext) -> int:
    """Reserve a pod on the chosen node and return the id of its row.

    The scheduler cache picks up the reservation like any external write.
    Raises: InputError `NodeUnknown` or `NodeRefused`; Conflict, Contradiction.
    """
    snapshot, scheduler, spec = asking.snapshot, asking.scheduler, pod.spec
    row = snapshot.state.row_of.get(node, -1)
    if row < 0:
        raise InputError("NodeUnknown", f"node {node!r} is not known to hetsched yet")
    revision, state_digest = snapshot.revision, snapshot.state.digest()
    answer = filter_nodes(scheduler, spec, [node])
    if not answer.feasible:
        why = {**answer.rejected, **answer.unresolvable}[node]
        raise InputError("NodeRefused", f"{spec.key} no longer fits on {node}: {why}")
    top = best(scheduler, spec, settings.HETSCHED_TOP_NODES)
    # Leave out the volume claims: the calling scheduler has already chosen and bound the volumes.
    plain = msgspec.structs.replace(spec, shape=msgspec.structs.replace(spec.shape, claims=()))
    outcome = scheduler.place_on(plain, row)
    if outcome.node is None:
        why = outcome.refusal[1].message if outcome.refusal else "refuse it"
        raise InputError("NodeRefused", f"{spec.key} no longer fits on {node}: {why}")
    score = round(outcome.score, 6)
    waiting = PendingPod(0, None, spec, pod.policy, pod.policy_rule, pod.state, 0, None)
    summary = Message(
        "{pod} placed on {node}, chosen by scheduler {name}, score {score}",
        pod=spec.key,
        node=node,
        name=spec.scheduler_name,
        score=f"{score:.1f}",
    )
    result = Result(
        waiting,
        Verdict.PLACED,
        summary,
        asking.spec.name,
        asking.spec.version,
        node_id=snapshot.node_ids[node],
        node_name=node,
        allocation=outcome.allocation,
        score=score,
        top=top,
    )
    scheduler.undo(outcome)
    return reserve_requested(cluster.pk, spec, result, revision=revision, snapshot=state_digest)[0]


def _note(cluster: Cluster, writing: Future[BindingOutcome]) -> None:
    """Record a binding result, even after a timeout of the call."""
    try:
        if writing.exception() is None:
            record_results(cluster, [writing.result()])
    finally:
        close_expired_connections()
