"""`what-if/`: simulate placements without writing.

The scheduler's engine runs on a copy of the latest snapshot, or on a cluster in the request. It first adds nodes, then
drains nodes, then schedules the pods in queue order. All pods of one request use one policy: the named or drafted
policy, or else the policy that the policy rules select for the pods. With `plan`, the result for the current state of a
cluster contains a signed token for its submission (`planned`).
Invariants: nothing is written, published or stored; the response is the document of `hetsched whatif -o json`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeVar
from uuid import uuid4

import msgspec
from django.db import connection
from django.http import HttpResponse
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.access.subject import Subject
from hetsched.access.tokens import allowance_of
from hetsched.adapters.files import parse_cluster, parse_workload
from hetsched.adapters.objects.manifest_warnings import kind_hint, refuse_warnings
from hetsched.contracts.api.decision import DoubtfulFact, WhatIfAnswer
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, joined
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.warnings import in_order
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.remedies import ADD_POD
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.builtin_policies import BUILTIN, DEFAULT
from hetsched.engine.framework.outcome import Outcome
from hetsched.engine.simulation.hypothetical_nodes import check_drained, copies, with_nodes
from hetsched.engine.simulation.what_if import what_if
from hetsched.inventory.models import Cluster, Node
from hetsched.placement.actions.image_platforms import with_known_facts
from hetsched.placement.actions.submissions import check_priority
from hetsched.placement.queries.redaction import Redaction
from hetsched.placement.quotas import check_ceiling
from hetsched.placement.scheduler_cache import fork
from hetsched.policies.actions import known_policies_hint
from hetsched.policies.effective import Chooser, active_specs
from hetsched.storage.batches import batched

from .. import bodies, request_scope
from ..documents import Request
from ..pagination import flag, integer
from ..problems import RequestRefused
from ..queries import YES_OR_NO
from ..views import ApiView, answer
from . import plan_tokens
from .draft_policies import InlineChooser, compile_draft, draft_policy

MOST_PODS = 10_000
MOST_CELLS = 500_000
AT_ONCE = 2
PATIENCE_SECONDS = 10
_CLUSTER_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_running = threading.BoundedSemaphore(AT_ONCE)
T = TypeVar("T", bound=Any)


class WhatIf(Request, frozen=True):
    """A manifest and assumptions; `cluster` is a name, or a whole cluster as text or `List`.

    `copyNodes` adds copies of nodes. `preempt` false or `noPreempt` true disables preemption. `replace` first removes
    running pods with the same names as pods of the manifest.
    `strict` rejects unknown fields, annotations and kinds instead of warning about them.
    `plan` requests a token with which the result can be submitted. `callbackUrl` is accepted but not called, so that
    the body of a submission can be used unchanged.
    """

    manifest: str | dict[str, Any]
    cluster: str | dict[str, Any] = ""
    policy: str = ""
    priority: int | None = None
    callback_url: str = ""
    policy_draft: dict[str, Any] | None = None
    drain: tuple[str, ...] = ()
    add_nodes: str | dict[str, Any] | list[dict[str, Any]] = ""
    copy_nodes: dict[str, int] = {}
    explain: bool = False
    no_preempt: bool = False
    preempt: bool = True
    replace: bool = False
    plan: bool = False
    strict: bool = False

    @property
    def preempts(self) -> bool:
        return self.preempt and not self.no_preempt

    @property
    def is_hypothetical(self) -> bool:
        """Return whether the request changes the cluster or the policy hypothetically, or contains its own cluster."""
        named = isinstance(self.cluster, str) and (not self.cluster or _CLUSTER_NAME.fullmatch(self.cluster))
        supposed = self.policy_draft or self.drain or self.add_nodes or self.copy_nodes or self.replace
        return bool(not named or supposed)


class WhatIfRun(msgspec.Struct, frozen=True):
    """A result, and the data that is needed to reserve it at `revision` of the cluster.

    `names` is the seed of the generated names in the result.
    """

    answer: WhatIfAnswer
    cluster: Cluster | None
    revision: int
    outcomes: dict[str, Outcome]
    names: str = ""


class WhatIfView(ApiView):
    actions: ClassVar = {"POST": Action.VIEW}
    within: ClassVar = ("POST",)
    queries: ClassVar = {
        **request_scope.CLUSTER_QUERY,
        "policy": "POST of a bare manifest: policy for placement.",
        "priority": "POST of a bare manifest: priority of all pods.",
        "explain": "POST of a bare manifest: true adds every node with the score of every plugin.",
        "drain": "POST of a bare manifest: nodes to drain first, separated by commas.",
        "noPreempt": "POST of a bare manifest: true disables preemption.",
        "replace": "POST of a bare manifest: true treats running pods with the same names as deleted.",
        "plan": "POST of a bare manifest: true adds a plan token for the submission.",
        "strict": "POST of a bare manifest: true rejects unknown fields, annotations and kinds.",
    }
    kinds: ClassVar = {"plan": YES_OR_NO, "replace": YES_OR_NO}

    @extend_schema(
        request={
            "application/json": WhatIf,
            "application/yaml": OpenApiTypes.STR,
            "text/csv": OpenApiTypes.STR,
        },
        responses=WhatIfAnswer,
    )
    def post(self, request: Any) -> HttpResponse:
        """Compute placements on a copy of a cluster."""
        asked = _read(request)
        if asked.drain:
            request_scope.check_unlimited(self.subject)
        if asked.plan and asked.is_hypothetical:
            raise InputError(
                "PlanNotPossible",
                "a plan cannot be created for a modified cluster or a policy draft",
                place="plan",
                hint="Remove policyDraft, drain, addNodes, copyNodes, replace and inline clusters",
            )
        with simulation_slot():
            tried = simulate(asked, self.subject, uuid4().hex if asked.plan else "")
        return answer(request, with_plan(asked, tried) if asked.plan else tried.answer)


@contextmanager
def simulation_slot(seats: threading.BoundedSemaphore | None = None) -> Iterator[None]:
    """Hold a slot of `seats` (default: the slots for what-ifs) until the `with` block ends, because each run may use a
    whole core for some time. Raises: RequestRefused 503.
    """
    seats = seats or _running
    if not connection.in_atomic_block:
        connection.close()
    if not seats.acquire(timeout=PATIENCE_SECONDS):
        raise RequestRefused(
            503,
            "WhatIfBusy",
            "too many what-if requests are in progress",
            headers={"Retry-After": str(PATIENCE_SECONDS)},
        )
    try:
        yield
    finally:
        seats.release()


def _read(request: Any) -> WhatIf:
    query = request.GET
    # Parse the query parameters even if the body is a document that does not use them, so that invalid values are
    # always reported.
    priority = integer(request, "priority", 0, least=-(2**31), most=2**31 - 1) if "priority" in query else None
    explain, no_preempt, replace, plan, strict = (
        flag(request, name) for name in ("explain", "noPreempt", "replace", "plan", "strict")
    )
    asked = bodies.wrapped_document(request, WhatIf)
    if asked is not None:
        return with_query_cluster(asked, query.get("cluster", ""))
    return WhatIf(
        manifest=bodies.text(bodies.raw(request, large=True)),
        cluster=query.get("cluster", ""),
        policy=query.get("policy", ""),
        priority=priority,
        drain=tuple(name for name in query.get("drain", "").split(",") if name),
        explain=explain,
        no_preempt=no_preempt,
        replace=replace,
        plan=plan,
        strict=strict,
    )


def with_query_cluster(asked: T, name: str) -> T:
    """Return a document with the cluster of the query string. Raises: InputError if it names another cluster."""
    if not name or asked.cluster == name:
        return asked
    if asked.cluster:
        raise InputError(
            "ClusterAmbiguous", "the query and the body name different clusters", place="cluster",
            hint="Name the cluster either in the query or in the body",
        )  # fmt: skip
    return msgspec.structs.replace(asked, cluster=name)


def simulate(asked: WhatIf, subject: Subject, names: str = "") -> WhatIfRun:
    """Simulate a request; nothing is written. Call it inside `simulation_slot`.

    `names` is the seed of generated names; without a seed, generated names are numbers. Raises: InputError,
    RequestRefused.
    """
    cluster: Cluster | None = None
    if isinstance(asked.cluster, str) and (not asked.cluster or _CLUSTER_NAME.fullmatch(asked.cluster)):
        cluster = request_scope.cluster_of(asked.cluster)
        inline = cluster.definitions
    else:
        inline = parse_cluster([("cluster", bodies.source(asked.cluster))])
    content = parse_workload([("manifest", bodies.source(asked.manifest))], known=inline, names=names)
    pods: Sequence[PodSpec] = content.pending
    warnings = in_order((inline.warnings if cluster is None else ()) + content.warnings)
    if asked.strict:
        refuse_warnings(warnings)
    if not pods and not asked.drain:
        message, hint = "the manifest contains no pod to place", kind_hint(content.warnings) or ADD_POD
        raise InputError("WorkloadEmpty", message, place="manifest", hint=hint)
    if len(pods) > MOST_PODS:
        message = Message("{n} pods exceed the maximum of {m} per request", n=len(pods), m=MOST_PODS)
        raise InputError("WorkloadTooLarge", message, place="manifest")
    request_scope.check_namespaces(subject, {pod.namespace for pod in pods})
    spec, pods = _choose(asked, cluster, inline, content)
    if cluster is not None and subject.may(Action.SUBMIT):  # reject requests that a submission would reject
        check_ceiling(allowance_of(subject.token), pods, asked.priority)
    if asked.priority is not None:
        check_priority(asked.priority)
        pods = [msgspec.structs.replace(pod, priority=asked.priority) for pod in pods]
    pods = with_known_facts(cluster, pods) if cluster else pods
    policy = compile_draft(spec, preemption=asked.preempts, implied=cluster is not None)
    state, revision = fork(cluster.pk) if cluster else (_state_of(inline), 0)
    if asked.add_nodes or asked.copy_nodes:
        added = _nodes(asked.add_nodes) if asked.add_nodes else ()
        state = with_nodes(state, (*added, *copies(state, asked.copy_nodes)))
    replaced = tuple(pod.key for pod in pods if state.forget(pod.key)) if asked.replace else ()
    state.add_storage(content.storage, content.devices)
    _check(asked, state, pods)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    outcomes: dict[str, Outcome] = {}
    found = what_if(
        state, policy, pods, evaluated_at=now, explain=asked.explain, drain=asked.drain, consume=True,
        outcomes=outcomes,
    )  # fmt: skip
    if cluster is not None:
        found = msgspec.structs.replace(found, doubts=_conflicts(cluster, found))
    if replaced:
        found = msgspec.structs.replace(found, replaced=replaced)
    if cluster is not None:  # an inline cluster contains only the caller's own data
        found = Redaction(subject.namespaces).what_if(found)
    if warnings:
        found = msgspec.structs.replace(found, warnings=warnings)
    return WhatIfRun(found, cluster, revision, outcomes, names)


def with_plan(asked: WhatIf, tried: WhatIfRun) -> WhatIfAnswer:
    """Return a result with the token for its submission if it can be submitted, else unchanged."""
    assert tried.cluster is not None
    request = plan_tokens.request_digest(bodies.source(asked.manifest), asked.policy, asked.priority)
    pods = [outcome.pod for outcome in tried.outcomes.values()]
    plan = plan_tokens.plan_of(
        tried.cluster.name, request, tried.answer, pods, preempts=asked.preempts, names=tried.names
    )
    return msgspec.structs.replace(tried.answer, plan=plan)


def _conflicts(cluster: Cluster, found: WhatIfAnswer) -> tuple[DoubtfulFact, ...] | None:
    """Return the facts of the chosen nodes that their kubelets contradicted, or None if there are none."""
    nodes = Node.objects.filter(cluster=cluster)
    doubts = [
        DoubtfulFact(name, conflict.fact, conflict.since, conflict.reason)
        for some in batched(sorted({placement.node for placement in found.placements}))
        for name, conflicts in nodes.filter(name__in=some).order_by("name").values_list("name", "doubts")
        for conflict in conflicts
    ]
    return tuple(doubts) or None


def _state_of(content: ClusterContent) -> ClusterState:
    if not content.nodes:
        raise InputError("ClusterWithoutNodes", "the file contains no Node object", place="cluster")
    return ClusterState.of(content)


def _check(asked: WhatIf, state: ClusterState, pods: Sequence[PodSpec]) -> None:
    check_drained(state, asked.drain)
    taken = next((pod.key for pod in pods if pod.key in state.placed_pods), None)
    if taken is not None:
        message = Message("a pod named {pod} already runs in the cluster", pod=taken)
        raise InputError("PodExists", message, place="manifest", hint="Use another name")
    if asked.explain and len(pods) * len(state.reports) > MOST_CELLS:
        raise InputError(
            "ExplainTooLarge",
            Message(
                "{n} pods on {m} nodes exceed the maximum of {k} pod-node pairs",
                n=len(pods),
                m=len(state.reports),
                k=MOST_CELLS,
            ),
            place="explain",
            hint="Send fewer pods in a request with explain",
        )


# -- added nodes -------------------------------------------------------------------------------------------------------


def _nodes(added: str | dict[str, Any] | list[dict[str, Any]]) -> tuple[NodeReport, ...]:
    whole = {"apiVersion": "v1", "kind": "List", "items": added} if isinstance(added, list) else added
    nodes = parse_cluster([("addNodes", bodies.source(whole))]).nodes
    if not nodes:
        raise InputError("ClusterWithoutNodes", "the file contains no Node object", place="addNodes")
    return nodes


# -- the policy --------------------------------------------------------------------------------------------------------


def _choose(
    asked: WhatIf, cluster: Cluster | None, inline: ClusterContent, content: ClusterContent
) -> tuple[PolicySpec, Sequence[PodSpec]]:
    """Return the policy and the pods. If the policy that a pod names cannot be used, its `problems` state the error."""
    if asked.policy_draft is not None:
        return draft_policy(asked.policy_draft), content.pending
    # A plan is decided like a submission: with active policies, regardless of policies in the request.
    own = {} if asked.plan else {spec.name: spec for spec in (*inline.policies, *content.policies)}
    if asked.policy in own:
        return own[asked.policy], content.pending
    chooser = Chooser(cluster) if cluster else InlineChooser(own, inline, content)
    pods: list[PodSpec] = []
    names: dict[str, None] = {}
    for pod in content.pending:
        chosen, problem = chooser.choose(pod, asked.policy)
        if problem is None:
            names[chosen.name] = None
        else:
            pod = msgspec.structs.replace(pod, problems=(*pod.problems, problem))
        pods.append(pod)
    if len(names) > 1:
        raise InputError(
            "PolicyAmbiguous",
            Message("the pods request different policies: {names}", names=joined(", ", sorted(names))),
            place="policy",
            hint="Name one policy, or send one request per policy",
        )
    fallback = asked.policy or (cluster.policy_name if cluster else DEFAULT)
    name = next(iter(names), fallback)
    spec = own.get(name) or active_specs({name}).get(name) or (None if cluster else BUILTIN.get(name))
    if spec is None:
        message = Message("unknown policy {name}", name=repr(name[:80]))
        raise InputError("PolicyUnknown", message, place="policy", hint=known_policies_hint())
    return spec, pods


routes = [path("what-if/", WhatIfView.as_view())]
