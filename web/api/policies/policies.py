"""`policies/`: drafts, versions and activations.

A version's content never changes. A draft has no effect until it is activated. Activation and rollback need a reason
and If-Match, so that a client cannot overwrite a change that it has not seen. Built-in policies follow the same rules.
A SchedulingPolicy that a cluster owns is read-only here until a policy editor takes it over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import msgspec
from django.db.models import F, QuerySet
from django.http import HttpResponse
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.adapters.files import parse_cluster
from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.policy import PluginUse, PolicySpec, Ties
from hetsched.policies.actions import activate, rollback, save_draft
from hetsched.policies.cluster_policies import set_owner
from hetsched.policies.documents import policy_document
from hetsched.policies.golden_checks import load_states
from hetsched.policies.models import Policy, PolicyRevision
from hetsched.policies.policy_diff import PolicyDiff, diff

from .. import bodies
from ..clusters import connections
from ..documents import Document, Request, page_of
from ..etags import etag_of
from ..pagination import LIST_QUERIES
from ..problems import RequestRefused, not_found
from ..request_scope import get_row
from ..resources import ResourceView
from ..views import ApiView, answer

_ROW = ("name", "description", "active_version")


class Draft(Request, frozen=True):
    """The content of a new version; `name` is the name of a new or existing policy."""

    plugins: tuple[PluginUse, ...]
    name: str = ""
    ties: Ties = Ties()
    description: str = ""
    reason: str = ""


class VersionDetail(Document, frozen=True):
    """A version and its content."""

    policy: str
    version: int
    state: str
    author: str
    reason: str
    created_at: Any
    activated_at: Any
    spec: PolicySpec


class PolicyRow(Document, frozen=True):
    """A policy in a list. `activeVersion` is 0 if no version is active; `keptIn` is null if the database owns the
    policy.
    """

    name: str
    description: str
    active_version: int
    kept_in: str | None


class PolicyDetail(Document, frozen=True):
    """Policy with its active version; `versions` maps each version number to the state, author and reason of the
    version.

    `keptIn` names the cluster whose object defines the policy. `objects` lists the objects of this name in clusters.
    """

    name: str
    description: str
    active_version: int
    spec: PolicySpec | None
    versions: dict[str, Any]
    kept_in: str | None
    objects: dict[str, Any]


class Activate(Request, frozen=True):
    """Version to activate, and the reason."""

    version: int
    reason: str


class Rollback(Request, frozen=True):
    """Reason for the rollback."""

    reason: str


class Owner(Request, frozen=True):
    """New owner of a policy, and the reason; `cluster` is null to make the database the owner."""

    reason: str
    cluster: str | None = None


class VersionDiff(Document, frozen=True):
    """Differences of version `after` from version `before`."""

    policy: str
    before: int
    after: int
    diff: PolicyDiff


class PolicyResource(ResourceView):
    """Base of the views of policies and their versions."""

    noun = "policy"
    lookup_field = "name"
    queryset = Policy.objects.prefetch_related("revisions")

    def document(self, row: Policy) -> PolicyDetail:
        return _document(row)

    def save(self, draft: Draft) -> HttpResponse:
        """Save a draft and return the new version as the response."""
        spec = PolicySpec(draft.name, draft.plugins, draft.ties, draft.description)
        revision = save_draft(spec, actor=self.subject, reason=draft.reason)
        location = f"/api/v1/policies/{draft.name}/versions/{revision.version}/"
        return answer(self.request, _version(revision), status=201, headers={"Location": location})


class PoliciesView(PolicyResource):
    actions: ClassVar = {"GET": Action.VIEW, "POST": Action.EDIT_POLICY}
    queries: ClassVar = LIST_QUERIES

    def get_queryset(self) -> QuerySet[Any]:
        return Policy.objects.values(*_ROW, kept_in=F("keeper__name"))

    def document(self, row: dict[str, Any]) -> PolicyRow:  # type: ignore[override]  # columns of the list
        return PolicyRow(**row)

    @extend_schema(responses=page_of(PolicyRow))
    def get(self, request: Any) -> HttpResponse:
        """List policies by name."""
        return self.list(request)

    @extend_schema(
        request={"application/json": Draft, "application/yaml": OpenApiTypes.STR}, responses={201: VersionDetail}
    )
    def post(self, request: Any) -> HttpResponse:
        """Save a draft of a new or existing policy, as JSON or as a SchedulingPolicy object."""
        return self.save(read_draft(request))


class PolicyView(PolicyResource):
    actions: ClassVar = {"GET": Action.VIEW}

    @extend_schema(responses=PolicyDetail)
    def get(self, request: Any, name: str) -> HttpResponse:
        """Show a policy with its active version and all others."""
        return self.retrieve(request)


class PolicyVersionsView(PolicyResource):
    actions: ClassVar = {"GET": Action.VIEW, "POST": Action.EDIT_POLICY}
    matched: ClassVar = {"POST": False}
    queries: ClassVar = LIST_QUERIES
    ordering = "-version"

    @extend_schema(responses=page_of(VersionDetail))
    def get(self, request: Any, name: str) -> HttpResponse:
        """List the versions of a policy with their content, the latest first."""
        rows = PolicyRevision.objects.filter(policy=self.get_object()).select_related("policy")
        found = self.paginate_queryset(rows)
        return self.get_paginated_response([_version(revision) for revision in found or ()])

    @extend_schema(
        request={"application/json": Draft, "application/yaml": OpenApiTypes.STR}, responses={201: VersionDetail}
    )
    def post(self, request: Any, name: str) -> HttpResponse:
        """Save a draft of this policy; If-Match, if present, contains the policy's ETag."""
        draft = read_draft(request, name)
        with self.locked_object() as policy:
            spec = PolicySpec(draft.name, draft.plugins, draft.ties, draft.description)
            with add_both_edits(spec, spec, policy.revisions.order_by("-version").first()):
                self.check_match(policy)
            return self.save(draft)


class PolicyVersionView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}

    @extend_schema(responses=VersionDetail)
    def get(self, request: Any, name: str, version: int) -> HttpResponse:
        """Show one version of a policy."""
        return answer(request, _version(version_of(name, version)))


class PolicyActivationView(PolicyResource):
    actions: ClassVar = {"POST": Action.EDIT_POLICY}
    matched: ClassVar = {"POST": True}

    @extend_schema(request=Activate, responses=PolicyDetail)
    def post(self, request: Any, name: str) -> HttpResponse:
        """Activate a version, effective from the next batch of decisions; needs If-Match."""
        asked = bodies.read(request, Activate)
        self.get_object()
        load_states(name)
        with self.locked_object() as policy:
            with _add_both_versions(policy, policy.revisions.filter(version=asked.version).first()):
                self.check_match(policy)
            activate(name, asked.version, actor=self.subject, reason=asked.reason)
        return self.written(self.get_object())


class PolicyRollbackView(PolicyResource):
    actions: ClassVar = {"POST": Action.EDIT_POLICY}
    matched: ClassVar = {"POST": True}

    @extend_schema(request=Rollback, responses=PolicyDetail)
    def post(self, request: Any, name: str) -> HttpResponse:
        """Roll back to the previously active version; needs If-Match."""
        asked = bodies.read(request, Rollback)
        self.get_object()
        load_states(name)
        with self.locked_object() as policy:
            with _add_both_versions(policy, policy.previous):
                self.check_match(policy)
            rollback(name, actor=self.subject, reason=asked.reason)
        return self.written(self.get_object())


class PolicyDiffView(ApiView):
    actions: ClassVar = {"GET": Action.VIEW}

    @extend_schema(responses=VersionDiff)
    def get(self, request: Any, name: str, version: int, other: int) -> HttpResponse:
        """Show the differences between two versions; version 0 is an empty policy."""
        before = None if version == 0 else version_of(name, version)
        after = version_of(name, other)
        found = diff(before.spec if before else None, after.spec)
        return answer(request, VersionDiff(name, version, other, found))


class PolicyKeeperView(PolicyResource):
    actions: ClassVar = {"POST": Action.EDIT_POLICY}
    matched: ClassVar = {"POST": True}

    @extend_schema(request=Owner, responses=PolicyDetail)
    def post(self, request: Any, name: str) -> HttpResponse:
        """Make the database or the object in a cluster the owner of a policy; needs If-Match."""
        asked = bodies.read(request, Owner)
        self.get_object()
        cluster = None if asked.cluster is None else connections.find(asked.cluster)
        with self.matched_object():
            set_owner(name, cluster, actor=self.subject, reason=asked.reason)
        return self.written(self.get_object())


def read_draft(request: Any, name: str = "") -> Draft:
    """Read a draft from JSON or from a SchedulingPolicy object; `name` is the name in the URL.

    Raises: InputError; RequestRefused 415.
    """
    if bodies.media_type(request, bodies.JSON, bodies.YAML) == bodies.JSON:
        plain = bodies.plain(bodies.raw(request))
        if not (isinstance(plain, dict) and "apiVersion" in plain):
            draft = bodies.convert(plain, Draft)
            return _named(draft, draft.name, name)
    found = parse_cluster([("policy", bodies.raw(request))]).policies
    if len(found) != 1:
        message = Message("the body must contain one SchedulingPolicy object, not {n}", n=len(found))
        raise InputError("PolicyAmbiguous", message)
    spec = found[0]
    return _named(Draft(spec.plugins, ties=spec.ties, description=spec.description), spec.name, name)


def _named(draft: Draft, stated: str, name: str) -> Draft:
    if name and stated not in ("", name):
        raise InputError("PolicyNameInvalid", bodies.name_mismatch(stated, name), place="name")
    return msgspec.structs.replace(draft, name=name or stated)


def find(name: str) -> Policy:
    """Return a policy with its versions. Raises: RequestRefused 404."""
    return get_row(Policy.objects.prefetch_related("revisions"), "policy", name, "name")


def version_of(name: str, version: int) -> PolicyRevision:
    """Return one version of a policy. Raises: RequestRefused 404."""
    rows = PolicyRevision.objects.filter(policy=find(name)).select_related("policy")
    revision = rows.filter(version=version).first()
    if revision is None:
        raise not_found("version", f"{name}@{version}")
    return revision


@contextmanager
def add_both_edits(yours: Any, spec: PolicySpec | None, theirs: PolicyRevision | None) -> Iterator[None]:
    """Add both edits to a 412 response: the client's content, the current content, and the difference between them."""
    try:
        yield
    except RequestRefused as refused:
        if refused.status == 412 and theirs is not None:
            refused.members["yours"], refused.members["theirs"] = yours, _version(theirs)
            refused.members["diff"] = None if spec is None else diff(theirs.spec, spec)
        raise


def _add_both_versions(policy: Policy, wanted: PolicyRevision | None) -> AbstractContextManager[None]:
    active = policy.revisions.filter(version=policy.active_version).first()
    return add_both_edits(_version(wanted) if wanted else None, wanted.spec if wanted else None, active)


def etag(policy: Policy) -> str:
    """Return the ETag of a policy, computed from the state that a write depends on: its versions and the active
    version.
    """
    return etag_of(encode(_document(policy)))


def _document(policy: Policy) -> PolicyDetail:
    document = policy_document(policy)
    active = next((r.spec for r in policy.revisions.all() if r.version == policy.active_version), None)
    return PolicyDetail(
        policy.name, policy.description, policy.active_version, active, document["versions"], document["keptIn"],
        document["objects"],
    )  # fmt: skip


def _version(revision: PolicyRevision) -> VersionDetail:
    return VersionDetail(
        policy=revision.policy.name,
        version=revision.version,
        state=revision.state,
        author=revision.author,
        reason=revision.reason,
        created_at=revision.created_at,
        activated_at=revision.activated_at,
        spec=revision.spec,
    )


routes = [
    path("policies/", PoliciesView.as_view()),
    path("policies/<str:name>/", PolicyView.as_view()),
    path("policies/<str:name>/versions/", PolicyVersionsView.as_view()),
    path("policies/<str:name>/versions/<int:version>/", PolicyVersionView.as_view()),
    path("policies/<str:name>/versions/<int:version>/diff/<int:other>/", PolicyDiffView.as_view()),
    path("policies/<str:name>/activate/", PolicyActivationView.as_view()),
    path("policies/<str:name>/rollback/", PolicyRollbackView.as_view()),
    path("policies/<str:name>/owner/", PolicyKeeperView.as_view()),
]
