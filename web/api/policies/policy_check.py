"""`policies/{name}/check/`: validate a draft while it is edited.

The checks are the same as for saving a draft. The status is 200 even for an invalid draft, because the check itself
succeeded. The response contains the draft as a policy and as the text of its SchedulingPolicy, so that a form and a
text editor show the same draft. It also contains the difference from the active version, or from a requested version.
Invariant: nothing is written.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema

from hetsched.access.roles import Action
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.policies.actions import check_policy
from hetsched.policies.manifest import manifest_of
from hetsched.policies.models import PolicyRevision
from hetsched.policies.policy_diff import PolicyDiff, diff

from ..documents import Document
from ..problems import listed_at
from ..views import ApiView, answer
from .policies import Draft, read_draft


class Fault(Document, frozen=True):
    """Error in a draft; `plugin` is the plugin that it concerns, if any."""

    code: str
    message: str
    place: str
    hint: str
    plugin: str


class PolicyCheck(Document, frozen=True):
    """Parsed draft; `against` is the version that `diff` compares it with, or 0 if there is none."""

    valid: bool
    problem: Fault | None
    spec: PolicySpec | None
    manifest: str
    against: int
    diff: PolicyDiff | None


class PolicyCheckView(ApiView):
    actions: ClassVar = {"POST": Action.VIEW}
    within: ClassVar = ("POST",)
    queries: ClassVar = {"against": "Version to compare the draft with; default: the active version."}

    @extend_schema(request={"application/json": Draft, "application/yaml": OpenApiTypes.STR}, responses=PolicyCheck)
    def post(self, request: Any, name: str) -> HttpResponse:
        """Check a draft and list the decisions that it would change; nothing is saved."""
        other = _version(name, request.GET.get("against", ""))
        against, before = (other.version, other.spec) if other else (0, None)
        spec: PolicySpec | None = None
        fault: Fault | None = None
        try:
            draft = read_draft(request, name)
            spec = PolicySpec(draft.name, draft.plugins, draft.ties, draft.description)
            check_policy(spec)
        except InputError as error:
            fault = Fault(error.code, error.message, error.place, error.hint, _plugin_of(error, spec))
        checked = PolicyCheck(
            valid=fault is None,
            problem=fault,
            spec=spec,
            manifest=manifest_of(spec) if spec else "",
            against=against,
            diff=diff(before, spec) if spec and before else None,
        )
        return answer(request, checked)


def _version(name: str, asked: str) -> PolicyRevision | None:
    """Return the requested version to compare with, by default the active version, or None if there is none yet.

    Raises: InputError `PolicyVersionUnknown`.
    """
    rows = PolicyRevision.objects.filter(policy__name=name)
    if not asked:
        return rows.filter(state="active").first()
    found = rows.filter(version=int(asked)).first() if asked.isdecimal() and len(asked) < 10 else None
    if found is None:
        hint = listed_at(f"policies/{name[:80]}/versions/")
        text = Message("policy {name} has no version {version}", name=name[:80], version=asked[:20])
        raise InputError("PolicyVersionUnknown", text, place="against", hint=hint)
    return found


def _plugin_of(error: InputError, spec: PolicySpec | None) -> str:
    """Return the plugin that an error concerns, or "" if it concerns none or the draft could not be parsed."""
    place = error.place.removeprefix("spec.")
    if spec is None or not place.startswith("plugins"):
        return ""
    named = next((use.name for use in spec.plugins if place.startswith(f"plugins.{use.name}.")), "")
    at = place.removeprefix("plugins[").partition("]")[0]
    return named or (spec.plugins[int(at)].name if at.isdecimal() and int(at) < len(spec.plugins) else "")


routes = [path("policies/<str:name>/check/", PolicyCheckView.as_view())]
