"""`golden-placements/`: pods with an expected placement, and whether the active policies still produce it.

Changes need the permission to edit policies, and a reason. A golden placement that the active version breaks is saved
with that state and blocks the next activation. Golden placements contain pods of any namespace, so a token that is
limited to namespaces sees none of them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from django.http import HttpResponse
from django.urls import path
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.contracts.api.golden import Expectation, GoldenCheck
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.policy import PluginUse, PolicySpec, Ties
from hetsched.contracts.objects.workload import PodSpec
from hetsched.inventory.models import Cluster
from hetsched.placement.models import Decision
from hetsched.placement.queries.decision_matrix import recorded_cluster
from hetsched.policies.actions import check_policy
from hetsched.policies.golden_checks import check_goldens, empty_state
from hetsched.policies.golden_states import RecordedCluster
from hetsched.policies.goldens import remove_golden, save_golden
from hetsched.policies.manifest import pod_text
from hetsched.policies.models import GoldenPlacement

from .. import bodies, request_scope
from ..documents import Document, Request, page_of
from ..etags import tag_of_row
from ..pagination import LIST_QUERIES
from ..problems import listed_at
from ..resources import ResourceView
from ..views import ApiView, answer
from ..whatif.what_if import simulation_slot
from .policies import find, version_of


class GoldenDraft(Request, frozen=True):
    """Golden placement: the manifest of one pod and the expected result. It guards `policy`, or all policies if
    `policy` is empty.

    `name` is required unless the URL contains it. The pod is checked on the cluster as of `decision`, or on empty nodes
    if that is null; a change without this field keeps the stored cluster state.
    """

    manifest: str | dict[str, Any]
    expect: Expectation
    reason: str
    name: str = ""
    cluster: str = ""
    policy: str = ""
    enabled: bool = True
    decision: int | None | msgspec.UnsetType = msgspec.UNSET


class GoldenDetail(Document, frozen=True):
    """A golden placement and its result under the active policies: kept, broken, unknown or off."""

    name: str
    cluster: str
    policy: str
    manifest: str
    expect: Expectation
    enabled: bool
    decision: int | None
    author: str
    reason: str
    created_at: Any
    changed_at: Any
    state: str
    expected: str
    got: str
    checked_at: Any
    broken_since: Any


class GoldenTrial(Request, frozen=True):
    """Policy to check: a version (by default the active one) or unsaved content."""

    policy: str
    version: int = 0
    plugins: tuple[PluginUse, ...] = ()
    ties: Ties = Ties()
    cluster: str = ""


class GoldenResource(ResourceView):
    """Base of the views of golden placements."""

    cluster_wide = True
    noun = "golden placement"
    lookup_field = "name"
    queryset = GoldenPlacement.objects.select_related("cluster").defer("cluster__definitions")

    def document(self, row: GoldenPlacement) -> GoldenDetail:
        return GoldenDetail(
            name=row.name,
            cluster=row.cluster.name,
            policy=row.policy_name,
            manifest=row.manifest,
            expect=row.expectation,
            enabled=row.enabled,
            decision=row.decision,
            author=row.author,
            reason=row.reason,
            created_at=row.created_at,
            changed_at=row.changed_at,
            state=row.state,
            expected=row.expectation.words,
            got=row.got,
            checked_at=row.checked_at,
            broken_since=row.broken_since,
        )

    def tag(self, row: GoldenPlacement) -> str:
        """Return the two-part ETag: the tag of the user's settings, a dot, and the tag of the state."""
        return tag_of_row(row, row.changed_at, self.document(row))

    def save(self, asked: GoldenDraft, name: str, *, creates: bool = False) -> GoldenPlacement:
        """Create or change a golden placement; with `creates`, it must not exist yet. Raises: InputError."""
        cluster = request_scope.cluster_of(asked.cluster)
        manifest = asked.manifest if isinstance(asked.manifest, str) else encode(asked.manifest).decode()
        pod, agreed = _golden_case(cluster, name, asked.decision, manifest)
        return save_golden(
            name,
            cluster=cluster,
            manifest=manifest,
            pod=pod,
            agreed=agreed,
            expectation=asked.expect,
            policy_name=asked.policy,
            enabled=asked.enabled,
            creates=creates,
            actor=self.subject,
            reason=asked.reason,
        )


class GoldensView(GoldenResource):
    actions: ClassVar = {"GET": Action.VIEW, "POST": Action.EDIT_POLICY}
    queries: ClassVar = {
        **LIST_QUERIES,
        "cluster": "Only golden placements of this cluster.",
        "policy": "Only golden placements that name this policy.",
        "state": "Only golden placements in this state: kept, broken, unknown or off.",
    }
    filters: ClassVar = {"cluster": "cluster__name", "policy": "policy_name", "state": "state"}

    @extend_schema(responses=page_of(GoldenDetail))
    def get(self, request: Any) -> HttpResponse:
        """List golden placements by name."""
        return self.list(request)

    @extend_schema(request=GoldenDraft, responses={201: GoldenDetail})
    def post(self, request: Any) -> HttpResponse:
        """Create a golden placement."""
        asked = bodies.read(request, GoldenDraft)
        row = self.save(asked, asked.name, creates=True)
        return self.written(row, status=201, location=f"/api/v1/golden-placements/{row.name}/")


class GoldenView(GoldenResource):
    actions: ClassVar = {"GET": Action.VIEW, "PUT": Action.EDIT_POLICY, "DELETE": Action.EDIT_POLICY}
    matched: ClassVar = {"PUT": True, "DELETE": True}
    queries: ClassVar = {"reason": "Of a DELETE: reason for the audit trail."}

    @extend_schema(responses=GoldenDetail)
    def get(self, request: Any, name: str) -> HttpResponse:
        """Show a golden placement."""
        return self.retrieve(request)

    @extend_schema(request=GoldenDraft, responses=GoldenDetail)
    def put(self, request: Any, name: str) -> HttpResponse:
        """Change a golden placement; needs If-Match."""
        asked = bodies.read(request, GoldenDraft)
        if asked.name not in ("", name):
            raise InputError("GoldenNameInvalid", bodies.name_mismatch(asked.name, name))
        empty_state(request_scope.cluster_of(asked.cluster))  # the document is read before any row is locked
        with self.matched_object():
            row = self.save(asked, name)
        return self.written(row)

    @extend_schema(responses={204: None})
    def delete(self, request: Any, name: str) -> HttpResponse:
        """Delete a golden placement; needs If-Match and a reason."""
        with self.matched_object():
            remove_golden(name, actor=self.subject, reason=request.GET.get("reason", ""))
        return HttpResponse(status=204)


class GoldenTrialView(ApiView):
    actions: ClassVar = {"POST": Action.VIEW}

    @extend_schema(request=GoldenTrial, responses=GoldenCheck)
    def post(self, request: Any) -> HttpResponse:
        """Check golden placements under a policy version or unsaved content; nothing is written."""
        asked = bodies.read(request, GoldenTrial)
        cluster = request_scope.cluster_of(asked.cluster) if asked.cluster else None
        if asked.plugins:
            spec = check_policy(PolicySpec(asked.policy, asked.plugins, asked.ties, version=0))
        else:
            spec = version_of(asked.policy, asked.version or find(asked.policy).active_version).spec
        with simulation_slot():
            return answer(request, check_goldens(spec, cluster=cluster))


class VersionGoldensView(ApiView):
    cluster_wide = True
    actions: ClassVar = {"GET": Action.VIEW}

    @extend_schema(responses=GoldenCheck)
    def get(self, request: Any, name: str, version: int) -> HttpResponse:
        """Check the golden placements that guard a policy under one of its versions."""
        spec = version_of(name, version).spec
        with simulation_slot():
            return answer(request, check_goldens(spec))


def _golden_case(
    cluster: Cluster, name: str, decision: int | None | msgspec.UnsetType, manifest: str
) -> tuple[PodSpec | None, RecordedCluster | None | msgspec.UnsetType]:
    """Return the pod and the recorded cluster state of a decision, for a golden placement.

    If the golden placement already has the state of this decision, UNSET is returned instead of the state, so that it
    stays unchanged: the decision may be too old to be reconstructed. Raises: InputError `DecisionUnknown` or
    `DecisionExpired`.
    """
    if decision is None or decision is msgspec.UNSET:
        return None, decision
    rows = Decision.objects.filter(cluster=cluster).select_related("cluster", "pod")
    found = rows.filter(pk=decision).first() if 0 < decision < 2**63 else None
    kept = GoldenPlacement.objects.filter(name=name, decision=decision, cluster=cluster).exists()
    if found is None and not kept:
        raise InputError(
            "DecisionUnknown",
            Message("cluster {name} has no decision {n}", name=cluster.name, n=decision),
            place="decision",
            hint=listed_at(f"decisions/?cluster={cluster.name}"),
        )
    # Use the stored spec for the same manifest: it also contains the requirements that were read from the pod's images.
    same = found is not None and manifest.strip() == pod_text(found.pod_spec).strip()
    pod = found.pod_spec if found is not None and same else None
    if kept or found is None:
        return pod, msgspec.UNSET
    with simulation_slot():
        return pod, recorded_cluster(found)


routes = [
    path("golden-placements/", GoldensView.as_view()),
    path("golden-placements/check/", GoldenTrialView.as_view()),
    path("golden-placements/<str:name>/", GoldenView.as_view()),
    path("policies/<str:name>/versions/<int:version>/goldens/", VersionGoldensView.as_view()),
]
