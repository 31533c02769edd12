"""The policy list: purpose, active version and drafts of each policy, and the clusters and namespaces that use it."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from django.db.models import Count, F, Max, Q
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from hetsched.access.roles import Action
from hetsched.access.subject import subject_of
from hetsched.inventory.models import DNS_LABEL
from hetsched.policies.documents import TOPIC
from hetsched.policies.models import GoldenPlacement, NamespaceRule, Policy, PolicyObject, RevisionState

from ..shell import Shell, page

_DRAFT = Q(revisions__state=RevisionState.DRAFT, revisions__version__gt=F("active_version"))


@page("policies")
def policies(shell: Shell) -> HttpResponse:
    if new := shell.text("new").strip():
        if not re.fullmatch(DNS_LABEL.regex, new):
            raise Http404(str(DNS_LABEL.message))
        return HttpResponseRedirect(reverse("policy", args=[new]) + shell.keep(**{"from": shell.text("from")}))
    shell.follow(TOPIC)
    default = shell.cluster.policy_name if shell.cluster else ""
    found = Policy.objects.select_related("keeper").annotate(
        drafts=Count("revisions", filter=_DRAFT), latest_draft=Max("revisions__version", filter=_DRAFT)
    )
    users = _users(shell)
    goldens = _goldens([policy.name for policy in found])
    news = [
        policy_object
        for policy_object in PolicyObject.objects.select_related("cluster")
        if policy_object.gone or policy_object.problem
    ]
    rows: list[dict[str, Any]] = [
        {
            "policy": policy,
            "default": policy.name == default,
            "clusters": users[0][policy.name],
            "namespaces": users[1][policy.name],
            "goldens": goldens[policy.name],
            "objects": [
                policy_object
                for policy_object in news
                if policy_object.name == policy.name
                and (not policy_object.gone or policy_object.cluster_id == policy.keeper_id)
            ],
        }
        for policy in found
    ]
    rows.sort(key=lambda row: (not row["default"], not (row["clusters"] or row["namespaces"]), row["policy"].name))
    names = {row["policy"].name for row in rows}
    context = {
        "rows": rows,
        "refused": [
            policy_object for policy_object in news if policy_object.name not in names and not policy_object.gone
        ],
        "may_edit": subject_of(shell.request).may(Action.EDIT_POLICY),
    }
    return shell.render("policies", context)


def _users(shell: Shell) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return, for each policy, the clusters and namespaces whose default policy it is."""
    clusters: dict[str, list[str]] = defaultdict(list)
    namespaces: dict[str, list[str]] = defaultdict(list)
    for cluster in shell.clusters:
        clusters[cluster.policy_name].append(cluster.name)
    for rule in NamespaceRule.objects.exclude(default_policy="").select_related("cluster"):
        namespaces[rule.default_policy].append(f"{rule.cluster.name}/{rule.namespace}")
    return clusters, namespaces


def _goldens(names: list[str]) -> dict[str, dict[str, int]]:
    """Return, for each policy, the number of its golden placements, and the number that are broken or unknown under
    the active version.
    """
    counts = {name: {"all": 0, "broken": 0, "unknown": 0} for name in names}
    rows = GoldenPlacement.objects.filter(enabled=True).values_list("policy_name", "state")
    for guarded, state in rows:
        for name in names if not guarded else [guarded]:
            of = counts.get(name, {})
            for key in ("all", state):
                if key in of:
                    of[key] += 1
    return counts
