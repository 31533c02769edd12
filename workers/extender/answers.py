"""What one cluster's kube-scheduler is answered.

Rule: every answer is made on the warm state that decides here, brought up to date first. Where the cluster is not known
whole and fresh nothing is answered but an error, and the scheduler's own configuration (`ignorable`) says whether its
pods wait or go on without us. A binding reads the pod, books it on the node that was chosen, if it still fits there,
and only then writes the Binding with what it holds; the write is waited for until the time is over and noted in any
case. Asked again for the same pod and node, the same binding is written again.
Invariant: no transaction is open and no state is held during a call to the API server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import msgspec
import structlog
from django.conf import settings
from django.db import connections
from django.utils import timezone

from hetsched.adapters.kube.api import Api, ApiFailure
from hetsched.adapters.kube.binding import Bound, Fate, ToBind, bind
from hetsched.adapters.kube.extender import (
    Args,
    BindingArgs,
    FilterResult,
    HostPriority,
    MetaPod,
    MetaVictims,
    PreemptionArgs,
    PreemptionResult,
    read_pod,
)
from hetsched.adapters.kube.resources import PODS
from hetsched.adapters.pods import Names, PodReader
from hetsched.contracts.cluster import ClusterContent
from hetsched.contracts.decision import Verdict
from hetsched.contracts.errors import InputError
from hetsched.contracts.policy import PolicySpec
from hetsched.contracts.workload import PodSpec, is_ours
from hetsched.engine.cycle import Scheduler
from hetsched.engine.explain import best
from hetsched.engine.extending import Fitting, fitting, leaving, priorities
from hetsched.inventory.connecting import api_of
from hetsched.inventory.following import in_step
from hetsched.inventory.models import Cluster
from hetsched.placement.actions import Conflict, Contradiction, Result, book_asked
from hetsched.placement.actions.submitting import prepare
from hetsched.placement.lifecycle import HOLDING, LIVE
from hetsched.placement.models import Pod
from hetsched.placement.queue import Waiting
from hetsched.placement.snapshot import Loaded, warm
from hetsched.policies.effective import active_specs
from workers.bind import note, to_bind

from .turns import Turns

MOST_CONFLICTS = 20
BINDINGS_AT_ONCE = 16
_POLL_SECONDS, _LOOK_SECONDS = 0.02, 0.1
_IMPATIENCE = 9  # a tenth of the time at most is spent on waiting for what was just freed
_LIVE = sorted(state.value for state in LIVE)
_FATES = {
    Fate.REFUSED: "BindingRefused",
    Fate.GONE: "PodGone",
    Fate.LOST: "PodBoundElsewhere",
    Fate.UNKNOWN: "BindingUnknown",
}
log = structlog.get_logger(__name__)


class Asking(msgspec.Struct, frozen=True):
    """The state, and the scheduler of the pod's policy on it, for the time of one answer."""

    loaded: Loaded
    spec: PolicySpec
    scheduler: Scheduler


class Extender:
    """Answers for one cluster within `seconds`, from several threads."""

    def __init__(self, cluster: Cluster, seconds: float, threads: Executor | None = None) -> None:
        self.cluster_id = cluster.pk
        self.seconds = seconds
        self.turns = Turns(seconds / 4)
        self._warm = warm(cluster.pk)
        self._threads = threads or ThreadPoolExecutor(BINDINGS_AT_ONCE, thread_name_prefix="extender bind")
        self._names: tuple[tuple[int, int], ClusterContent, PodReader] | None = None
        self._impatient_until = 0.0

    # -- verbs ---------------------------------------------------------------------------------------------------------

    def filter(self, args: Args) -> FilterResult:
        """Say which nodes fit, in the form in which they came. Raises: InputError."""
        nodes = args.named()
        until = time.monotonic() + self.seconds
        cluster, reader = self._cluster()
        spec = read_pod(bytes(args.pod), reader)
        pod = self._pod(cluster, spec)
        self.turns.begin(pod.uid)
        fits = False
        try:
            told = self._fitting(self._with_images(cluster, spec, pod), list(nodes), until)
            fits = bool(told.fitting)
        finally:
            if not fits:
                self.turns.end(pod.uid)
        result = FilterResult(failed_nodes=told.refused, failed_and_unresolvable_nodes=told.hopeless)
        if args.node_names is not None:
            result.node_names = told.fitting
        else:
            result.nodes = {"items": [nodes[name] for name in told.fitting]}
        return result

    def prioritize(self, args: Args) -> list[HostPriority]:
        """Say how well each node fits. Raises: InputError."""
        nodes = args.named()
        until = time.monotonic() + self.seconds
        cluster, reader = self._cluster()
        pod = self._pod(cluster, read_pod(bytes(args.pod), reader))
        with self._asking(pod, until) as asking:
            told = priorities(asking.scheduler, pod.spec, list(nodes))
        return [HostPriority(name, score) for name, score in told.items()]

    def preempt(self, args: PreemptionArgs) -> PreemptionResult:
        """Say on which of these nodes who would have to leave. Raises: InputError."""
        offered = args.offered()
        until = time.monotonic() + self.seconds
        cluster, reader = self._cluster()
        pod = self._pod(cluster, read_pod(bytes(args.pod), reader))
        uids = {name: [one.uid for one in victims.pods or ()] for name, victims in offered.items()}
        with self._asking(pod, until) as asking:
            told = leaving(asking.scheduler, pod.spec, uids)
        return PreemptionResult(
            {
                name: MetaVictims([MetaPod(uid) for uid in left], offered[name].num_pdb_violations)
                for name, left in told.items()
                if left
            }
        )

    def bind(self, args: BindingArgs) -> None:
        """Book the pod on the node and write its binding. Raises: InputError where it is not bound, with the reason."""
        until = time.monotonic() + self.seconds
        booked = False
        try:
            cluster, reader = self._cluster()
            api = api_of(cluster)
            one = self._booked(cluster, args) or self._book(cluster, args, api, reader, until)
            booked = True
        finally:
            self.turns.end(args.pod_uid, bound=booked)
        if one is None:
            return
        writing = self._threads.submit(bind, api, one)
        writing.add_done_callback(partial(_note, cluster))  # after the answer, which does not wait for it
        try:
            bound = writing.result(timeout=max(until - time.monotonic(), 0.1))
        except TimeoutError:
            message = f"the API server has not answered; {args.pod_name} keeps what it holds on {args.node} until it is"
            raise InputError("BindingUnknown", f"{message} known") from None
        if bound.fate in _FATES:
            raise InputError(_FATES[bound.fate], bound.message)

    def warm_up(self) -> None:
        """Fold the state, so that the first pod does not wait for it."""
        with self._warm.held():
            pass

    # -- what answers are made of --------------------------------------------------------------------------------------

    def _cluster(self) -> tuple[Cluster, PodReader]:
        """Return the cluster with its definitions, and who reads its pods.

        Raises: InputError `ClusterNotInStep`.
        """
        cluster = Cluster.objects.defer("definitions").get(pk=self.cluster_id)
        if not in_step(cluster):
            hint = "GET clusters/NAME/ and `hetsched cluster test NAME` say why"
            raise InputError("ClusterNotInStep", f"cluster {cluster.name} is not known whole and fresh", hint=hint)
        known = self._names
        revisions = cluster.layout_revision, cluster.definitions_revision
        if known is None or known[0] != revisions:
            definitions = Cluster.objects.values_list("definitions", flat=True).get(pk=self.cluster_id)
            known = self._names = (revisions, definitions, PodReader(Names.of(definitions)))
        cluster.definitions = known[1]
        return cluster, known[2]

    def _pod(self, cluster: Cluster, spec: PodSpec) -> Pod:
        """Return the row, unsaved, of a pod that another scheduler asks about.

        Raises: InputError `PodIsOurs`.
        """
        if is_ours(spec.scheduler_name):
            message = f"{spec.key} has schedulerName {spec.scheduler_name}: hetsched places it by itself"
            raise InputError("PodIsOurs", message, hint="Give the other scheduler's profile another name")
        (pod,) = prepare(cluster, [spec], "", None, Pod.ASKED)
        return pod

    def _with_images(self, cluster: Cluster, spec: PodSpec, pod: Pod) -> Pod:
        """Return the pod once its images are looked up, or as it is when that takes too long."""
        until = time.monotonic() + self.seconds / 4
        while pod.images_until and pod.images_until > timezone.now() and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
            pod = self._pod(cluster, spec)
        return pod

    def _fitting(self, pod: Pod, names: list[str], until: float) -> Fitting:
        """Say which nodes fit; where none does for now, what was just freed is waited for, a short while now and then.

        Whoever asks has often seen a pod go a moment before us, and asks again only after something else happened.
        """
        began = time.monotonic()
        patient_until = began + self.seconds / 8 if began > self._impatient_until else began
        while True:
            with self._asking(pod, until) as asking:
                told, revision = fitting(asking.scheduler, pod.spec, names), asking.loaded.revision
            if told.fitting or not told.refused or not self._is_changed(revision, patient_until):
                spent = time.monotonic() - began if patient_until > began else 0.0
                self._impatient_until = max(self._impatient_until, time.monotonic() + _IMPATIENCE * spent)
                return told

    def _is_changed(self, revision: int, until: float) -> bool:
        """Tell, by `until`, whether something was booked or freed after a revision."""
        while time.monotonic() < until:
            if Cluster.objects.filter(pk=self.cluster_id, revision__gt=revision).exists():
                return True
            time.sleep(_POLL_SECONDS)
        return False

    @contextmanager
    def _asking(self, pod: Pod, until: float) -> Iterator[Asking]:
        """Give the state and the scheduler of the pod's policy. Raises: InputError `ExtenderBusy`, `PolicyUnknown`."""
        spec = active_specs({pod.policy}).get(pod.policy)
        if spec is None:
            raise InputError("PolicyUnknown", f"policy {pod.policy!r} has no active version")
        try:
            with self._warm.held(max(until - time.monotonic(), 0)) as loaded:
                try:
                    if self._warm.policy(spec).wants_mix:
                        loaded.state.use_mix(loaded.state.booked_mix())
                    yield Asking(loaded, spec, self._warm.scheduler(spec))
                except InputError:
                    raise
                except Exception:
                    self._warm.forget()  # whatever it left behind goes with the state
                    raise
        except TimeoutError:
            raise InputError("ExtenderBusy", "the state is in use by other answers") from None

    # -- binding -------------------------------------------------------------------------------------------------------

    def _booked(self, cluster: Cluster, args: BindingArgs) -> ToBind | None:
        """Return the binding of a pod that is booked already, None where it is not.

        Raises: InputError `PodIsOurs`, `PodReplaced` or `PodBookedElsewhere`.
        """
        live = Pod.objects.filter(cluster=cluster, namespace=args.pod_namespace, name=args.pod_name, state__in=_LIVE)
        row = live.select_related("node").defer("node__report").first()
        if row is None:
            return None
        if row.state not in HOLDING:
            raise InputError("PodIsOurs", f"{row.key} waits in hetsched's own queue")
        if row.uid != args.pod_uid:
            raise InputError("PodReplaced", f"the pod that was called {row.key} before was not seen to end yet")
        node = row.node.name if row.node else ""
        if node != args.node:
            raise InputError("PodBookedElsewhere", f"the binding of {row.key} to {node} is on its way")
        return next(iter(to_bind([row.pk])), None)

    def _book(self, cluster: Cluster, args: BindingArgs, api: Api, reader: PodReader, until: float) -> ToBind | None:
        """Read the pod and book it; None where it is bound to that node already. Raises: InputError."""
        pod = self._waiting(cluster, args, api, reader)
        if pod is None:
            return None
        for _ in range(MOST_CONFLICTS):
            if time.monotonic() > until:
                break
            with self._asking(pod, until) as asking:
                try:
                    pod_id = _book_once(cluster, pod, args.node, asking)
                except Contradiction as refusal:
                    log.error("placement set aside", pod=pod.key, node=args.node, reason=str(refusal))
                    message = f"what {pod.key} would hold on {args.node} is held already, unseen by the scheduler"
                    raise InputError("LedgerRefused", message) from None
                except Conflict as conflict:
                    log.info("booking lost", cluster=self.cluster_id, reason=str(conflict))
                    continue
            return to_bind([pod_id])[0]
        raise InputError("ExtenderBusy", f"{pod.key} could not be booked: others were faster each time")

    def _waiting(self, cluster: Cluster, args: BindingArgs, api: Api, reader: PodReader) -> Pod | None:
        """Read the pod as the API server has it; None where it is on that node already.

        Raises: InputError `NameInvalid`, `PodGone`, `PodBoundElsewhere` or `ApiServerAway`.
        """
        try:
            body = api.get(PODS.path(namespace=args.pod_namespace, name=args.pod_name))
        except ValueError as error:
            raise InputError("NameInvalid", str(error)) from None
        except ApiFailure as failure:
            code = "PodGone" if failure.status == 404 else "ApiServerAway"
            raise InputError(code, str(failure)) from None
        plain = json.loads(body)
        key, uid = f"{args.pod_namespace}/{args.pod_name}", plain["metadata"].get("uid", "")
        node = plain["spec"].get("nodeName", "")
        if uid != args.pod_uid:
            raise InputError("PodGone", f"another pod is called {key} by now")
        if node and node != args.node:
            raise InputError("PodBoundElsewhere", f"{key} is on {node} already")
        return None if node else self._pod(cluster, read_pod(body, reader))


def _book_once(cluster: Cluster, pod: Pod, node: str, asking: Asking) -> int:
    """Book a pod where it was chosen to go, and return its row; the state takes it in like all that others write.

    Raises: InputError `NodeUnknown` or `NodeRefused`; Conflict, Contradiction.
    """
    loaded, scheduler, spec = asking.loaded, asking.scheduler, pod.spec
    row = loaded.state.row_of.get(node, -1)
    if row < 0:
        raise InputError("NodeUnknown", f"node {node!r} is not known to hetsched yet")
    revision, snapshot = loaded.revision, loaded.state.digest()
    told = fitting(scheduler, spec, [node])
    if not told.fitting:
        why = {**told.refused, **told.hopeless}[node]
        raise InputError("NodeRefused", f"{spec.key} does not fit on {node} any more, among nodes that {why}")
    top = best(scheduler, spec, settings.HETSCHED_TOP_NODES)
    # Its volumes were chosen, and bound, by the scheduler that asks.
    plain = msgspec.structs.replace(spec, shape=msgspec.structs.replace(spec.shape, claims=()))
    outcome = scheduler.place_on(plain, row)
    if outcome.node is None:
        why = outcome.refusal[1].message if outcome.refusal else "refuse it"
        raise InputError("NodeRefused", f"{spec.key} does not fit on {node} any more, among nodes that {why}")
    score = round(outcome.score, 6)
    waiting = Waiting(0, None, spec, pod.policy, pod.policy_rule, pod.state, 0, None)
    result = Result(
        waiting,
        Verdict.PLACED,
        f"{spec.key} placed on {node}, chosen by scheduler {spec.scheduler_name}, score {score:.1f}",
        asking.spec.name,
        asking.spec.version,
        node_id=loaded.node_ids[node],
        node_name=node,
        allocation=outcome.allocation,
        score=score,
        top=top,
    )
    scheduler.undo(outcome)
    return book_asked(cluster.pk, spec, result, revision=revision, snapshot=snapshot)[0]


def _note(cluster: Cluster, writing: Future[Bound]) -> None:
    """Note what became of a binding, whoever still waits for it."""
    try:
        if writing.exception() is None:
            note(cluster, [writing.result()])
    finally:
        give_connections_back()


def give_connections_back() -> None:
    """End what this thread holds of the database, except inside somebody else's transaction."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
