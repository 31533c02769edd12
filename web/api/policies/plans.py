"""`policy-plans/`: scheduled activations of policy versions.

Changes need the permission to edit policies, and a reason; each change resets the state of the plan. A plan activates a
version in the same way as a user, including the check of golden placements, and records the result.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

import msgspec
from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.contracts.errors import InputError
from hetsched.policies.hysteresis import Switch
from hetsched.policies.models import PolicyPlan
from hetsched.policies.plan_contracts import Condition, Once
from hetsched.policies.plans import forecast_switches, remove_plan, save_plan

from .. import bodies
from ..documents import Document, Request, page_of
from ..etags import tag_of_row
from ..pagination import LIST_QUERIES
from ..resources import ResourceView
from ..views import ApiView, answer


class PlanDraft(Request, frozen=True):
    """Plan that activates a version at the time in `once`, or when the `condition` on a metric of a cluster is met.

    `name` is optional if the URL contains it.
    """

    policy: str
    reason: str
    name: str = ""
    once: Once | None = None
    condition: Condition | None = None
    enabled: bool = True


class PlanDetail(Document, frozen=True):
    """Plan and its state: waiting, done, refused, skipped or off; `note` describes the state."""

    name: str
    policy: str
    enabled: bool
    once: Once | None
    condition: Condition | None
    author: str
    reason: str
    created_at: datetime
    changed_at: datetime
    state: str
    note: str
    last_value: float | None
    last_looked_at: datetime | None
    above_since: datetime | None
    below_since: datetime | None
    last_switched_at: datetime | None


class PlanTrial(Request, frozen=True):
    """Condition to evaluate on recorded metrics."""

    condition: Condition


class PlanPreview(msgspec.Struct, frozen=True, rename={"from_time": "from", "to_time": "to"}):
    """Activations that a condition would have caused in the last week; `known` is false without enough samples."""

    known: bool
    from_time: datetime | None
    to_time: datetime | None
    samples: int
    switches: list[Switch]
    note: str


class PlanResource(ResourceView):
    """Base of the views of policy plans."""

    noun = "plan"
    lookup_field = "name"
    queryset = PolicyPlan.objects.select_related("policy")

    def document(self, row: PolicyPlan) -> PlanDetail:
        return PlanDetail(
            name=row.name,
            policy=row.policy.name,
            enabled=row.enabled,
            once=row.once,
            condition=row.condition,
            author=row.author,
            reason=row.reason,
            created_at=row.created_at,
            changed_at=row.changed_at,
            state=row.state,
            note=row.note,
            last_value=row.last_value,
            last_looked_at=row.last_looked_at,
            above_since=row.above_since,
            below_since=row.below_since,
            last_switched_at=row.last_switched_at,
        )

    def tag(self, row: PolicyPlan) -> str:
        """Return the two-part ETag: the tag of the user's settings, a dot, and the tag of the state."""
        return tag_of_row(row, row.changed_at, self.document(row))

    def save(self, asked: PlanDraft, name: str, *, creates: bool = False) -> PolicyPlan:
        """Create or change a plan; with `creates`, it must not exist yet. Raises: InputError."""
        return save_plan(
            name,
            policy_name=asked.policy,
            once=asked.once,
            condition=asked.condition,
            enabled=asked.enabled,
            creates=creates,
            actor=self.subject,
            reason=asked.reason,
        )


class PlansView(PlanResource):
    actions: ClassVar = {"GET": Action.VIEW, "POST": Action.EDIT_POLICY}
    queries: ClassVar = {
        **LIST_QUERIES,
        "policy": "Only plans of this policy.",
        "cluster": "Only plans that depend on a metric of this cluster.",
    }
    filters: ClassVar = {"policy": "policy__name", "cluster": "cluster__name"}

    @extend_schema(responses=page_of(PlanDetail))
    def get(self, request: Any) -> HttpResponse:
        """List plans by name."""
        return self.list(request)

    @extend_schema(request=PlanDraft, responses={201: PlanDetail})
    def post(self, request: Any) -> HttpResponse:
        """Create a plan."""
        asked = bodies.read(request, PlanDraft)
        row = self.save(asked, asked.name, creates=True)
        return self.written(row, status=201, location=f"/api/v1/policy-plans/{row.name}/")


class PlanView(PlanResource):
    actions: ClassVar = {"GET": Action.VIEW, "PUT": Action.EDIT_POLICY, "DELETE": Action.EDIT_POLICY}
    matched: ClassVar = {"PUT": True, "DELETE": True}
    queries: ClassVar = {"reason": "Of a DELETE: reason for the audit trail."}

    @extend_schema(responses=PlanDetail)
    def get(self, request: Any, name: str) -> HttpResponse:
        """Show a plan."""
        return self.retrieve(request)

    @extend_schema(request=PlanDraft, responses=PlanDetail)
    def put(self, request: Any, name: str) -> HttpResponse:
        """Change a plan, or switch it on or off; needs If-Match."""
        asked = bodies.read(request, PlanDraft)
        if asked.name not in ("", name):
            raise InputError("PlanNameInvalid", bodies.name_mismatch(asked.name, name))
        with self.matched_object():
            row = self.save(asked, name)
        return self.written(row)

    @extend_schema(responses={204: None})
    def delete(self, request: Any, name: str) -> HttpResponse:
        """Delete a plan; versions that it activated stay active. Needs If-Match and a reason."""
        with self.matched_object():
            remove_plan(name, actor=self.subject, reason=request.GET.get("reason", ""))
        return HttpResponse(status=204)


class PlanTrialView(ApiView):
    actions: ClassVar = {"POST": Action.VIEW}
    within: ClassVar = ("POST",)

    @extend_schema(request=PlanTrial, responses=PlanPreview)
    def post(self, request: Any) -> HttpResponse:
        """Evaluate a condition on the metrics of the last week; nothing is written."""
        asked = bodies.read(request, PlanTrial)
        found = forecast_switches(asked.condition)
        preview = PlanPreview(found.known, found.start, found.end, found.samples, found.switches, found.note)
        return answer(request, preview)


routes = [
    path("policy-plans/", PlansView.as_view()),
    path("policy-plans/preview/", PlanTrialView.as_view()),
    path("policy-plans/<str:name>/", PlanView.as_view()),
]
