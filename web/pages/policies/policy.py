"""The policy editor: edit, compare, test and activate a draft.

The editor starts with the version in `?version=`, else the latest draft, else the active version. A new policy starts
with the content of another policy (`?from=`). Unsaved edits are stored in the browser. All changes are made through
REST with the ETag of the rendered page.
A plan is shown as text: its trigger, version and result.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponse
from django.utils.formats import date_format
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from hetsched.access.roles import Action
from hetsched.access.subject import Subject, subject_of
from hetsched.contracts.api.decision import Verdict
from hetsched.contracts.documents import to_plain
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.engine.framework.registry import load_registry
from hetsched.inventory.models import DNS_LABEL
from hetsched.placement.models import Decision
from hetsched.policies.documents import TOPIC
from hetsched.policies.manifest import manifest_of, pod_text
from hetsched.policies.models import GoldenPlacement, Policy, PolicyObject, PolicyPlan, PolicyRevision, RevisionState
from hetsched.policies.plan_contracts import METRIC_NAMES
from web.api.policies.policies import etag

from ..shell import Shell, page
from .rows import rows_of
from .script_texts import editor_texts

_STATES = {
    PolicyPlan.WAITING: gettext_lazy("scheduled"),
    PolicyPlan.DONE: gettext_lazy("done"),
    PolicyPlan.REFUSED: gettext_lazy("rejected"),
    PolicyPlan.SKIPPED: gettext_lazy("skipped"),
    PolicyPlan.OFF: gettext_lazy("disabled"),
}


def plan_rows(policy: Policy) -> list[dict[str, Any]]:
    """Return the plans of a policy with their texts."""
    rows = PolicyPlan.objects.filter(policy=policy)
    return [
        {
            "plan": plan,
            "when": plan_text(plan),
            "state": _STATES.get(plan.state, plan.state),
            "value": "" if plan.last_value is None else f"{plan.last_value:.3g}",
        }
        for plan in rows
    ]


def plan_text(plan: PolicyPlan) -> str:
    """Describe the trigger and the version of a plan."""
    if plan.once is not None:
        at = date_format(localtime(plan.once.at), "Y-m-d H:i e")
        return _("v%(version)d at %(at)s") % {"version": plan.once.version, "at": at}
    condition = plan.condition
    if condition is None:
        return ""
    return _(
        "v%(high)d if %(metric)s of %(cluster)s is above %(above)g for %(minutes)d min, "
        "v%(low)d if it is below %(below)g"
    ) % {
        "cluster": condition.cluster,
        "metric": METRIC_NAMES[condition.metric],
        "above": condition.above,
        "high": condition.above_version,
        "below": condition.below,
        "low": condition.below_version,
        "minutes": condition.minutes,
    }  # fmt: skip


MOST_VERSIONS = 200
MOST_DECISIONS = 15
# Number of recent decisions that are searched for placements by this policy. The limit bounds the search for a policy
# that is rarely used.
LOOK_BACK = 20_000


@page("policies")
def policy(shell: Shell, name: str) -> HttpResponse:
    shell.follow(TOPIC)
    subject = subject_of(shell.request)
    found = Policy.objects.select_related("keeper").prefetch_related("revisions").filter(name=name).first()
    if found is None:
        return _new(shell, subject, name)
    revisions = list(found.revisions.all())
    active = next((revision for revision in revisions if revision.version == found.active_version), None)
    shown = _shown(shell, revisions, active)
    locked = _locked(subject, found)
    context = {
        **_editor(shown.spec, locked, _decisions(found.name)),
        "policy": found,
        "name": found.name,
        "shown": shown,
        "active": active,
        "revisions": revisions[:MOST_VERSIONS],
        "earlier": found.previous,
        "objects": PolicyObject.objects.filter(name=found.name).select_related("cluster"),
        "goldens": _goldens(found.name),
        "plans": plan_rows(found),
        "metrics": METRIC_NAMES.items(),
        "etag": etag(found),
        "may_edit": subject.may(Action.EDIT_POLICY),
        "desk": _editor_data(
            shown.spec,
            shown=shown.version,
            state=shown.state,
            active=found.active_version,
            deciding=_uses((active or shown).spec),
            locked=locked,
        ),
    }
    return shell.render("policy/workflow", context)


def _new(shell: Shell, subject: Subject, name: str) -> HttpResponse:
    """Start a new policy with the content of another policy."""
    origin = Policy.objects.filter(name=shell.text("from"), active_version__gt=0).first()
    if origin is None or not re.fullmatch(DNS_LABEL.regex, name):
        raise Http404(_("This policy does not exist. Create a policy on the policies page."))
    if not subject.may(Action.EDIT_POLICY):
        raise PermissionDenied(_("Creating a policy needs the role policy-admin. Ask an administrator for this role."))
    begun = origin.revisions.get(version=origin.active_version).spec
    spec = msgspec.structs.replace(begun, name=name, version=0)
    context = {
        **_editor(spec, "", _decisions(origin.name)),
        "policy": None,
        "name": name,
        "origin": origin.name,
        "revisions": [],
        "etag": "",
        "desk": _editor_data(spec, shown=0, state="", active=0, deciding=_uses(begun), locked=""),
    }
    return shell.render("policy/workflow", context)


def _editor_data(spec: PolicySpec, **facts: Any) -> dict[str, Any]:
    """Return the initial data for the script as plain JSON values."""
    return {"name": spec.name, "spec": to_plain(spec), **facts}


def _uses(spec: PolicySpec) -> list[dict[str, Any]]:
    return list(to_plain(spec.plugins))


def _editor(spec: PolicySpec, locked: str, decisions: list[Decision]) -> dict[str, Any]:
    used, unused = rows_of(spec, load_registry())
    return {
        "spec": spec,
        "used": used,
        "unused": unused,
        "manifest": manifest_of(spec),
        "locked": locked,
        "words": editor_texts(),
        "decisions": decisions,
        "golden_pods": _pods(decisions),
    }


def _shown(shell: Shell, revisions: list[PolicyRevision], active: PolicyRevision | None) -> PolicyRevision:
    """Return the requested version, else the latest draft, else the active version."""
    asked = shell.text("version")
    if asked:
        found = next((revision for revision in revisions if str(revision.version) == asked), None)
        if found is None:
            raise Http404(_("This policy has no version %(version)s.") % {"version": asked})
        return found
    latest = revisions[0] if revisions else None
    if latest is not None and latest.state == RevisionState.DRAFT:
        return latest
    chosen = active or latest
    if chosen is None:
        raise Http404(_("This policy has no version yet."))
    return chosen


def _locked(subject: Subject, policy: Policy) -> str:
    """Return the reason why the policy is read-only for this user, or "" if it is editable."""
    if not subject.may(Action.EDIT_POLICY):
        return _("Your account has read-only access. Editing policies needs the role policy-admin.")
    if policy.keeper is not None:
        return _(
            "This policy is stored in cluster %(cluster)s. Edit its SchedulingPolicy object there, or take "
            "the policy over."
        ) % {"cluster": policy.keeper.name}
    return ""


def _decisions(name: str) -> list[Decision]:
    """Return the latest placements by this policy, for testing weights; there may be none."""
    newest = Decision.objects.order_by("-id").values_list("id", flat=True).first() or 0
    rows = Decision.objects.filter(policy_name=name, verdict=Verdict.PLACED.value, id__gt=newest - LOOK_BACK)
    shown = ("id", "namespace", "pod_name", "node_name", "policy_version", "created_at")
    rows = rows.select_related("pod", "cluster").only(*shown, "pod__spec", "cluster__name")
    return list(rows.order_by("-id")[:MOST_DECISIONS])


def _pods(decisions: list[Decision]) -> dict[str, dict[str, str]]:
    """Return, for each decision, the initial form values of a golden placement for its pod and node."""
    return {
        str(decision.pk): {
            "name": re.sub(r"[^a-z0-9-]+", "-", decision.pod_name.lower()).strip("-")[:63].strip("-"),
            "cluster": decision.cluster.name,
            "node": decision.node_name,
            "manifest": pod_text(decision.pod_spec),
        }
        for decision in decisions
    }


def _goldens(name: str) -> list[GoldenPlacement]:
    """Return the golden placements that apply to this policy."""
    rows = GoldenPlacement.objects.filter(policy_name__in=("", name)).select_related("cluster")
    return list(rows.defer("cluster__definitions", "manifest"))
