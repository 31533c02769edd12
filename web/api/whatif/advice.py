"""`clusters/{name}/advice/` and `rebalances/`: proposed moves of running pods, and the plans that operators confirmed.

Advice writes nothing. Its ETag identifies the plan: a client confirms the plan by sending the same question again with
If-Match. The server then computes the plan again, and responds with 412 and the ETag of the new plan if it is
different. The workers execute confirmed plans, move by move. Advice concerns a whole cluster, so tokens that are
limited to namespaces get no advice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from django.db.models import QuerySet
from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema
from msgspec import Meta

from hetsched.access.roles import Action
from hetsched.adapters.files import parse_workload
from hetsched.contracts.api.advice import Advice as AdviceAnswer
from hetsched.contracts.api.advice import Goal, Question
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.workload import PodSpec
from hetsched.inventory.connections import is_in_shadow
from hetsched.inventory.models import Cluster
from hetsched.placement.actions.image_platforms import with_known_facts
from hetsched.placement.actions.rebalance_state import confirm_plan, stop_plan
from hetsched.placement.lifecycle import HOLDING
from hetsched.placement.models import Pod, Rebalance, Workload
from hetsched.placement.queries.advice import advice_about, pending_pods_in, pending_pods_of
from hetsched.policies.effective import active_specs

from .. import bodies
from ..clusters.connections import find
from ..documents import Document, Request, page_of
from ..etags import check_match, etag_of
from ..pagination import LIST_QUERIES
from ..problems import RequestRefused
from ..request_scope import get_row
from ..resources import ResourceView
from ..views import ApiView, answer
from .what_if import simulation_slot

MOST_MOVES = 100
MOST_TRIES = 20_000
MOST_PODS = 50
_HOLDING = [state.value for state in HOLDING]


class AdviceQuestion(Request, frozen=True):
    """Goal and limits of the moves.

    Goal `room` frees capacity for the pods of a `manifest` or of a pending `workload`; goal `rare` frees rare resources
    for these pods, or for all pending pods. `target` is the balance to reach (0-1).
    """

    goal: Literal["balance", "room", "rare"]
    manifest: str | dict[str, Any] | None = None
    workload: str = ""
    target: Annotated[float, Meta(ge=0, le=1)] = 0.95
    most_moves: Annotated[int, Meta(ge=1, le=MOST_MOVES)] = 10
    most_tries: Annotated[int, Meta(ge=1, le=MOST_TRIES)] = 2000


class Confirmation(AdviceQuestion, frozen=True):
    """Question whose plan is confirmed, with a reason and the indexes of the selected moves; null selects all moves."""

    reason: str = ""
    steps: tuple[int, ...] | None = None


class RebalanceAction(Request, frozen=True):
    """Action on a plan in progress."""

    action: Literal["stop"]
    reason: str


class MoveRow(Document, frozen=True):
    """Move of one pod in a plan; its state is waiting, leaving, moved or stopped. `cameTo` is the node of the pod or of
    its successor.
    """

    step: int
    pod: str
    source: str
    target: str
    state: str
    came_to: str | None
    message: str | None
    changed_at: Any


class RebalanceRow(Document, frozen=True):
    """Confirmed plan with its state (running, done or stopped) and progress."""

    id: int
    cluster: str
    goal: str
    summary: str
    plan: str
    state: str
    message: str | None
    asked_by: str
    reason: str
    created_at: Any
    finished_at: Any
    moves: list[MoveRow]


class AdviceView(ApiView):
    actions: ClassVar = {"POST": Action.VIEW}

    @extend_schema(request=AdviceQuestion, responses=AdviceAnswer)
    def post(self, request: Any, name: str) -> HttpResponse:
        """Propose moves of running pods with their gain and cost; nothing is moved."""
        asked = bodies.read(request, AdviceQuestion, large=True)
        found = advice_for(find(name), asked)
        return answer(request, found, headers={"ETag": _tag(found.token)})


class RebalanceResource(ResourceView):
    """Base of the views of confirmed plans of a cluster."""

    cluster_wide = True
    noun = "rebalance"
    lookup_url_kwarg = "number"
    ordering = "-id"

    def get_queryset(self) -> QuerySet[Rebalance]:
        rows = Rebalance.objects.filter(cluster=find(self.kwargs["name"])).select_related("cluster")
        return rows.prefetch_related("moves")

    def document(self, row: Rebalance) -> RebalanceRow:
        return _row(row)


class RebalancesView(RebalanceResource):
    actions: ClassVar = {"GET": Action.VIEW, "POST": Action.OPERATE}
    matched: ClassVar = {"POST": True}
    queries: ClassVar = LIST_QUERIES

    @extend_schema(responses=page_of(RebalanceRow))
    def get(self, request: Any, name: str) -> HttpResponse:
        """List confirmed plans, latest first."""
        return self.list(request)

    @extend_schema(request=Confirmation, responses={202: RebalanceRow})
    def post(self, request: Any, name: str) -> HttpResponse:
        """Execute a plan or some of its moves; needs If-Match with the plan's ETag."""
        asked = bodies.read(request, Confirmation, large=True)
        cluster = find(name)
        if is_in_shadow(cluster.pk):
            raise RequestRefused(
                409, "ClusterInShadow", "this cluster is in shadow mode: another scheduler places its pods"
            )
        found = advice_for(cluster, asked)
        check_match(request, _tag(found.token), required=True)
        steps = range(len(found.moves)) if asked.steps is None else asked.steps
        if any(step not in range(len(found.moves)) for step in steps):
            message = Message("a selected step does not exist: the plan has {n} moves", n=len(found.moves))
            raise InputError("StepUnknown", message, place="steps")
        plan = confirm_plan(cluster, found, steps, actor=self.subject, reason=asked.reason)
        headers = {"Location": f"{request.path}{plan.pk}/"}
        return answer(request, _row(plan), status=202, headers=headers)


class RebalanceView(RebalanceResource):
    actions: ClassVar = {"GET": Action.VIEW}

    @extend_schema(responses=RebalanceRow)
    def get(self, request: Any, name: str, number: int) -> HttpResponse:
        """Show a confirmed plan and its progress."""
        return self.retrieve(request)


class RebalanceActionsView(RebalanceResource):
    actions: ClassVar = {"POST": Action.OPERATE}
    matched: ClassVar = {"POST": True}

    @extend_schema(request=RebalanceAction, responses=RebalanceRow)
    def post(self, request: Any, name: str, number: int) -> HttpResponse:
        """Stop a plan; needs If-Match."""
        asked = bodies.read(request, RebalanceAction)
        with self.matched_object() as plan:
            stop_plan(plan, actor=self.subject, reason=asked.reason)
        return self.written(self.get_object())


def advice_for(cluster: Cluster, asked: AdviceQuestion) -> AdviceAnswer:
    """Compute the advice for the current state of a cluster.

    Raises: InputError, RequestRefused.
    """
    goal = Goal(asked.goal)
    question = Question(goal, _pods(cluster, goal, asked), asked.target, asked.most_moves, asked.most_tries)
    with simulation_slot():
        return advice_about(cluster, question, _default(cluster))


def _pods(cluster: Cluster, goal: Goal, asked: AdviceQuestion) -> tuple[PodSpec, ...]:
    """Return the pods for which the moves must free capacity."""
    pods: tuple[PodSpec, ...] = ()
    if goal is Goal.BALANCE:
        return pods
    if asked.manifest is not None:
        content = parse_workload([("manifest", bodies.source(asked.manifest))], known=cluster.definitions)
        _check_number(content.pending)
        pods = tuple(with_known_facts(cluster, content.pending))
        named = Pod.objects.filter(cluster=cluster, state__in=_HOLDING, name__in=[pod.name for pod in pods])
        held = {pod.key for pod in named.only("namespace", "name")}
        taken = next((pod.key for pod in pods if pod.key in held), None)
        if taken is not None:
            message = Message("a pod named {pod} already runs in the cluster", pod=taken)
            raise InputError("PodExists", message, place="manifest", hint="Use another name")
    elif asked.workload:
        workload = get_row(Workload.objects.filter(cluster=cluster), "workload", asked.workload)
        pods = tuple(pending_pods_of(workload))
    elif goal is Goal.RARE:
        return tuple(pending_pods_in(cluster))
    if not pods:
        raise InputError(
            "WorkloadEmpty",
            "goal `room` requires at least one pod",
            place="manifest",
            hint="Send a manifest or name a pending workload",
        )
    _check_number(pods)
    return pods


def _check_number(pods: Sequence[PodSpec]) -> None:
    if len(pods) > MOST_PODS:
        message = Message("{n} pods exceed the maximum of {m} per request", n=len(pods), m=MOST_PODS)
        raise InputError("WorkloadTooLarge", message, place="manifest")


def _default(cluster: Cluster) -> PolicySpec:
    found = active_specs({cluster.policy_name}).get(cluster.policy_name)
    if found is None:
        message = Message("unknown policy {name}", name=repr(cluster.policy_name))
        raise InputError("PolicyUnknown", message, place="cluster")
    return found


def _tag(token: str) -> str:
    return f'"{token}"'


def plan_tag(plan: Rebalance) -> str:
    """Return the ETag of a confirmed plan."""
    return etag_of(encode(_row(plan)))


def _row(plan: Rebalance) -> RebalanceRow:
    return RebalanceRow(
        id=plan.pk,
        cluster=plan.cluster.name,
        goal=plan.goal,
        summary=plan.summary,
        plan=plan.token,
        state=plan.state,
        message=plan.message or None,
        asked_by=plan.asked_by,
        reason=plan.reason,
        created_at=plan.created_at,
        finished_at=plan.finished_at,
        moves=[
            MoveRow(
                step=move.step,
                pod=move.pod_key,
                source=move.source,
                target=move.target,
                state=move.state,
                came_to=move.actual_node or None,
                message=move.message or None,
                changed_at=move.changed_at,
            )
            for move in plan.moves.all()
        ],
    )


routes = [
    path("clusters/<str:name>/advice/", AdviceView.as_view()),
    path("clusters/<str:name>/rebalances/", RebalancesView.as_view()),
    path("clusters/<str:name>/rebalances/<int:number>/", RebalanceView.as_view()),
    path("clusters/<str:name>/rebalances/<int:number>/actions/", RebalanceActionsView.as_view()),
]
