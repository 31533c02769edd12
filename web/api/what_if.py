"""`what-if/`: what would happen, with nothing written.

Rule: the engine that decides for real runs on a copy of the latest snapshot, or of a cluster that comes with the
request; first nodes are added, then others drained, then the pods are tried in queue order. All pods of one request
are tried under one policy: the one it names or drafts, else the one that their own rules choose. With `plan` the answer
about a cluster as it is comes with a signed token, by which it can be submitted (`planned`).
Invariants: nothing is written, told or kept; the answer is the document of `hetsched whatif -o json`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar
from uuid import uuid4

import msgspec
from django.db import connection
from django.http import HttpResponse
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.access.subject import Subject
from hetsched.adapters.files import parse_cluster, parse_workload
from hetsched.contracts.cluster import ClusterContent
from hetsched.contracts.decision import DoubtfulFact, WhatIfAnswer
from hetsched.contracts.errors import InputError, Problem
from hetsched.contracts.node_report import NodeReport
from hetsched.contracts.policy import PolicySpec
from hetsched.contracts.workload import PodSpec
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.builtin_policies import BUILTIN, DEFAULT
from hetsched.engine.framework.cycle import Outcome
from hetsched.engine.framework.policy import IMPLIED, compile_policy, policy_from_plain
from hetsched.engine.framework.policy import Policy as Compiled
from hetsched.engine.simulation.hypothetical_nodes import check_drained, copies, with_nodes
from hetsched.engine.simulation.what_if import what_if
from hetsched.inventory.models import Cluster, Node
from hetsched.placement.actions.image_platforms import with_known
from hetsched.placement.actions.submissions import check_priority
from hetsched.placement.snapshot import fork
from hetsched.policies.actions import known_policies
from hetsched.policies.effective import Chooser, active_specs
from hetsched.policies.models import Policy
from hetsched.storage.batches import parts

from . import bodies, plan_tokens, reach
from .documents import Request
from .paging import flag, integer
from .plugins import registry
from .problems import Refused
from .queries import YES_OR_NO
from .views import ApiView, answer

MOST_PODS = 10_000
MOST_CELLS = 500_000
AT_ONCE = 2
PATIENCE_SECONDS = 10
_CLUSTER_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_running = threading.BoundedSemaphore(AT_ONCE)


class WhatIf(Request, frozen=True):
    """A manifest and what to suppose; `cluster` is a name, or a whole cluster as text or `List`.

    `copyNodes` supposes so many more nodes like these. `preempt` false, or `noPreempt`, never counts on evicting
    running pods. `replace` takes pods that have these names and run to be gone: what is asked for is to follow them.
    `plan` asks for a token by which the answer can be submitted. `callbackUrl` is taken, and nobody is called: what is
    submitted can be asked about as it is.
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

    @property
    def preempts(self) -> bool:
        return self.preempt and not self.no_preempt

    @property
    def supposes(self) -> bool:
        """Whether it is about something else than a cluster of ours as it is."""
        named = isinstance(self.cluster, str) and (not self.cluster or _CLUSTER_NAME.fullmatch(self.cluster))
        supposed = self.policy_draft or self.drain or self.add_nodes or self.copy_nodes or self.replace
        return bool(not named or supposed)


class Tried(msgspec.Struct, frozen=True):
    """An answer, and what somebody needs who means to have it come true on `revision` of the cluster.

    `names` is what its generated names are made of.
    """

    answer: WhatIfAnswer
    cluster: Cluster | None
    revision: int
    outcomes: dict[str, Outcome]
    names: str = ""


class View(ApiView):
    actions: ClassVar = {"POST": Action.VIEW}
    within: ClassVar = ("POST",)
    queries: ClassVar = {
        **reach.CLUSTER_QUERY,
        "policy": "POST of a bare manifest: the policy to decide by.",
        "priority": "POST of a bare manifest: the priority of all its pods.",
        "explain": "POST of a bare manifest: true adds every node with every plugin's score.",
        "drain": "POST of a bare manifest: nodes to drain first, comma-separated.",
        "noPreempt": "POST of a bare manifest: true never counts on evicting running pods.",
        "replace": "POST of a bare manifest: true takes running pods of these names to be gone.",
        "plan": "POST of a bare manifest: true adds a token by which the answer can be submitted.",
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
        """Try pods on a copy of a cluster."""
        asked = _read(request)
        if asked.drain:
            reach.check_unlimited(self.subject)
        if asked.plan and asked.supposes:
            raise InputError(
                "PlanNotPossible",
                "a plan is of a cluster as it is, under a policy that is active",
                place="plan",
                hint="Leave policyDraft, drain, addNodes, copyNodes, replace and inline clusters out",
            )
        with turn():
            tried = ask(asked, self.subject, uuid4().hex if asked.plan else "")
        return answer(request, with_plan(asked, tried) if asked.plan else tried.answer)


@contextmanager
def turn() -> Iterator[None]:
    """Let only a few run at once: each may take a whole core for a while."""
    if not connection.in_atomic_block:
        connection.close()
    if not _running.acquire(timeout=PATIENCE_SECONDS):
        raise Refused(503, "WhatIfBusy", "others are being answered", headers={"Retry-After": str(PATIENCE_SECONDS)})
    try:
        yield
    finally:
        _running.release()


def _read(request: Any) -> WhatIf:
    query = request.GET
    # Read before it is known whether they count: what a document comes with is checked too.
    priority = integer(request, "priority", 0, least=-(2**31), most=2**31 - 1) if "priority" in query else None
    explain, no_preempt, replace, plan = (flag(request, name) for name in ("explain", "noPreempt", "replace", "plan"))
    asked = bodies.wrapped(request, WhatIf)
    if asked is not None:
        return asked
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
    )


def ask(asked: WhatIf, subject: Subject, names: str = "") -> Tried:
    """Try what is asked; nothing is written. Call it inside `turn`.

    `names` is what generated names are made of; they are numbers without it.
    Raises: InputError, Refused.
    """
    cluster: Cluster | None = None
    if isinstance(asked.cluster, str) and (not asked.cluster or _CLUSTER_NAME.fullmatch(asked.cluster)):
        cluster = reach.cluster_of(asked.cluster)
        inline = cluster.definitions
    else:
        inline = parse_cluster([("cluster", bodies.source(asked.cluster))])
    content = parse_workload([("manifest", bodies.source(asked.manifest))], known=inline, names=names)
    pods: Sequence[PodSpec] = content.pending
    if not pods and not asked.drain:
        raise InputError("WorkloadEmpty", "the manifest holds no pod to place", place="manifest")
    if len(pods) > MOST_PODS:
        raise InputError("WorkloadTooLarge", f"{len(pods)} pods are more than {MOST_PODS} at once", place="manifest")
    reach.check_namespaces(subject, {pod.namespace for pod in pods})
    spec, pods = _choose(asked, cluster, inline, content)
    if asked.priority is not None:
        check_priority(asked.priority)
        pods = [msgspec.structs.replace(pod, priority=asked.priority) for pod in pods]
    pods = with_known(cluster, pods) if cluster else pods
    policy = _compile(spec, preemption=asked.preempts, implied=IMPLIED if cluster else ())
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
        found = msgspec.structs.replace(found, doubts=_doubts(cluster, found))
    if replaced:
        found = msgspec.structs.replace(found, replaced=replaced)
    return Tried(found, cluster, revision, outcomes, names)


def with_plan(asked: WhatIf, tried: Tried) -> WhatIfAnswer:
    """Return an answer with the token by which it can be submitted, where it can."""
    assert tried.cluster is not None
    request = plan_tokens.request_digest(bodies.source(asked.manifest), asked.policy, asked.priority)
    pods = [one.pod for one in tried.outcomes.values()]
    plan = plan_tokens.plan_of(
        tried.cluster.name, request, tried.answer, pods, preempts=asked.preempts, names=tried.names
    )
    return msgspec.structs.replace(tried.answer, plan=plan)


def _doubts(cluster: Cluster, found: WhatIfAnswer) -> tuple[DoubtfulFact, ...] | None:
    """Return what is in doubt about the nodes that are placed on, None where nothing is."""
    nodes = Node.objects.filter(cluster=cluster)
    doubts = [
        DoubtfulFact(name, one.fact, one.since, one.reason)
        for some in parts(sorted({placement.node for placement in found.placements}))
        for name, told in nodes.filter(name__in=some).order_by("name").values_list("name", "doubts")
        for one in told
    ]
    return tuple(doubts) or None


def _state_of(content: ClusterContent) -> ClusterState:
    if not content.nodes:
        raise InputError("ClusterWithoutNodes", "there is no Node in it", place="cluster")
    return ClusterState.of(content)


def _check(asked: WhatIf, state: ClusterState, pods: Sequence[PodSpec]) -> None:
    check_drained(state, asked.drain)
    taken = next((pod.key for pod in pods if pod.key in state.bookings), None)
    if taken is not None:
        raise InputError("PodExists", f"the cluster runs a pod {taken} already", place="manifest", hint="Rename it")
    if asked.explain and len(pods) * len(state.reports) > MOST_CELLS:
        raise InputError(
            "ExplainTooLarge",
            f"{len(pods)} pods on {len(state.reports)} nodes are more than {MOST_CELLS} rows",
            place="explain",
            hint="Explain fewer pods at a time",
        )


# -- supposed nodes ----------------------------------------------------------------------------------------------------


def _nodes(added: str | dict[str, Any] | list[dict[str, Any]]) -> tuple[NodeReport, ...]:
    whole = {"apiVersion": "v1", "kind": "List", "items": added} if isinstance(added, list) else added
    nodes = parse_cluster([("addNodes", bodies.source(whole))]).nodes
    if not nodes:
        raise InputError("ClusterWithoutNodes", "there is no Node in it", place="addNodes")
    return nodes


# -- the policy --------------------------------------------------------------------------------------------------------


def _choose(
    asked: WhatIf, cluster: Cluster | None, inline: ClusterContent, content: ClusterContent
) -> tuple[PolicySpec, Sequence[PodSpec]]:
    """Return the policy to decide by, and the pods, marked where the policy they name cannot be theirs."""
    if asked.policy_draft is not None:
        return _draft(asked.policy_draft), content.pending
    # What is to come true is decided as a submission would be: by policies that are active, whatever comes along.
    own = {} if asked.plan else {spec.name: spec for spec in (*inline.policies, *content.policies)}
    if asked.policy in own:
        return own[asked.policy], content.pending
    chooser = Chooser(cluster) if cluster else _InlineChooser(own, inline, content)
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
            f"the pods name different policies: {', '.join(sorted(names))}",
            place="policy",
            hint="Name one policy, or ask for them one by one",
        )
    fallback = asked.policy or (cluster.policy_name if cluster else DEFAULT)
    name = next(iter(names), fallback)
    spec = own.get(name) or active_specs({name}).get(name) or (None if cluster else BUILTIN.get(name))
    if spec is None:
        raise InputError("PolicyUnknown", f"there is no policy {name[:80]!r}", place="policy", hint=known_policies())
    return spec, pods


class _InlineChooser:
    """Chooses as the command line does: what the pod names, its namespace's default, the default policy."""

    def __init__(self, own: dict[str, PolicySpec], inline: ClusterContent, content: ClusterContent) -> None:
        self.known = own.keys() | BUILTIN.keys() | set(Policy.objects.values_list("name", flat=True))
        self.defaults = inline.namespace_policies | content.namespace_policies

    def choose(self, pod: PodSpec, requested: str = "") -> tuple[Any, Problem | None]:
        name = requested or pod.policy or self.defaults.get(pod.namespace, "") or DEFAULT
        if name in self.known:
            return _Named(name), None
        if requested:
            raise InputError(
                "PolicyUnknown", f"there is no policy {name[:80]!r}", place="policy", hint=known_policies()
            )
        return _Named(DEFAULT), Problem("PolicyUnknown", pod.policy_field, f"there is no policy {name!r}")


class _Named(msgspec.Struct, frozen=True):
    name: str


def _draft(plain: dict[str, Any]) -> PolicySpec:
    if "apiVersion" in plain:
        found = parse_cluster([("policyDraft", bodies.source(plain))]).policies
        if len(found) != 1:
            raise InputError("PolicyAmbiguous", "it is not one SchedulingPolicy", place="policyDraft")
        return msgspec.structs.replace(found[0], version=0)
    name = plain.get("name") or "draft"
    try:
        return policy_from_plain({**plain, "version": 0}, name=str(name))
    except InputError as error:
        raise InputError(error.code, error.message, place="policyDraft", hint=error.hint) from None


def _compile(spec: PolicySpec, *, preemption: bool, implied: Sequence[str] = ()) -> Compiled:
    plugins = registry()
    if not preemption:
        kept = tuple(u for u in spec.plugins if u.name not in plugins or "post-filter" not in plugins[u.name].points)
        spec = msgspec.structs.replace(spec, plugins=kept)
    return compile_policy(spec, plugins, implied=implied)


routes = [path("what-if/", View.as_view())]
