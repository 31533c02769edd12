"""Whether everything works: the parts of the installation, each cluster, and first what is wrong and what to do.

Rule: figures are those of `/readyz`, `/metrics` and `clusters/{name}/connection/`; a problem is told with what to do
about it and where. Names of credentials, hosts and namespaces are shown, what is in them never.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.conf import settings
from django.http import HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from hetsched import __version__
from hetsched.access.roles import Action
from hetsched.access.subject import Subject, subject_of
from hetsched.contracts.units import CPU, MEMORY
from hetsched.inventory.actions import cluster_topic
from hetsched.inventory.agent_messages import agents_of
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.journal import counters, figures
from hetsched.policies.models import GoldenPlacement, Policy
from web.api import collectors as collector_documents
from web.api.connections import ConnectionDetail, cluster_tag, connection_of
from web.api.health import LATE_CANARY_SECONDS, Component, components

from .amounts import percent
from .shell import Shell, page
from .told import told

_BAD, _WAIT = "bad", "wait"
# Parts of the installation stop without a word.
_SECONDS_BETWEEN_LOOKS = 30


class Problem(msgspec.Struct, frozen=True):
    """Something that is not as it should be, what to do, and where to look."""

    tone: str
    text: str
    todo: str
    url: str = ""
    label: str = ""


class Part(msgspec.Struct, frozen=True):
    """One part of the installation: whether it works, None where nobody knows, and what is to say about it."""

    name: str
    ok: bool | None
    said: str
    at: datetime | None = None
    todo: str = ""


class Shown(msgspec.Struct, frozen=True):
    """One cluster as it stands."""

    cluster: Cluster
    live: bool
    connection: ConnectionDetail | None
    leading: bool
    agents: dict[str, Any] | None
    collectors: list[Any]
    problems: list[Problem]
    tag: str
    shares: list[tuple[str, str]]


@page("clusters")
def clusters(shell: Shell) -> HttpResponse:
    if shell.cluster is not None:
        shell.follow(cluster_topic(shell.cluster))
    subject = subject_of(shell.request)
    parts = list(_parts())
    shown = [_shown(cluster, subject) for cluster in shell.clusters]
    problems = [Problem(_BAD, f"{part.name}: {part.said}", part.todo) for part in parts if part.ok is False]
    problems += [problem for one in shown for problem in one.problems]
    problems.sort(key=lambda problem: problem.tone != _BAD)
    may_act = subject.may(Action.OPERATE)
    context = {
        "problems": problems,
        "parts": parts,
        "shown": shown,
        "version": __version__,
        "may_act": may_act,
        "every": _SECONDS_BETWEEN_LOOKS,
        "words": _words(),
        "policy_names": sorted(Policy.objects.filter(active_version__gt=0).values_list("name", flat=True)),
    }
    return shell.render("clusters", context)


def _words() -> dict[str, str]:
    """Return what the test of a connection says."""
    return {
        "asking": _("Asking…"),
        "unreachable": _("The server cannot be reached."),
        "well": _("well"),
        "wrong": _("wrong"),
        "allWell": _("{name}: everything is there"),
        "someWrong": _("{name}: something is missing"),
        "nothing": _("{name} lives only here: there is nothing to ask"),
    }


# -- the installation --------------------------------------------------------------------------------------------------


def _parts() -> Iterator[Part]:
    found = components()
    words = {
        "database": (_("Database"), _("Look at the database server and DATABASE_URL; nothing works without it.")),
        "migrations": (
            pgettext("of a database", "Tables"),
            _("Run `python manage.py migrate`; the tables are older than the program."),
        ),
        "broker": (_("Redis"), _("Look at Redis and REDIS_URL; submissions are kept, nothing is decided.")),
        "outbox": (_("Live events"), _("Look at the workers of the queue io; pages do not move until they work.")),
        "scheduler": (_("Scheduling"), _("Look at the workers of the queue schedule and their log.")),
        "watch": (_("Watches"), _("Run `hetsched scheduler`; below stands which cluster is not followed, and why.")),
    }
    now = timezone.now()
    for name, (label, todo) in words.items():
        component = found[name]
        at = None if component.age_seconds is None else now - timedelta(seconds=component.age_seconds)
        yield Part(label, component.ok, _component(name, component), at, "" if component.ok else todo)
    if found["database"].ok and found["migrations"].ok:
        yield from _queues()
        yield _invariants()
        yield from _goldens()


def _component(name: str, component: Component) -> str:
    """Return what is to say of a part; queues stand for themselves, so workers are left out here."""
    idle = {
        "outbox": _("every event is sent"),
        "scheduler": _("no pod waits for its first look"),
        "migrations": _("all are there"),
    }
    late = {
        "outbox": _("the oldest live event that was not sent"),
        "scheduler": _("the oldest pod that was never looked at"),
    }
    if component.ok and component.age_seconds is None and name in idle:
        return idle[name]
    if component.age_seconds is not None and name in late:
        return late[name]
    return component.detail or (_("works") if component.ok else _("does not work"))


def _queues() -> Iterator[Part]:
    now = timezone.now()
    at = {one.labels[0]: one.at for one in counters.told(figures.CANARY)}
    for queue in settings.HETSCHED_VITAL_QUEUES:
        ok = queue in at and (now - at[queue]).total_seconds() < LATE_CANARY_SECONDS
        said = _("a canary came through") if queue in at else _("no worker was ever seen")
        todo = "" if ok else _("Start a worker of this queue: celery -A hetsched.project.celery:app worker -Q …")
        yield Part(_("Queue %(queue)s") % {"queue": queue}, ok, said, at.get(queue), todo)


def _invariants() -> Part:
    checks = counters.told(figures.VIOLATIONS)
    label = _("Invariants")
    if not checks:
        return Part(label, None, _("not checked yet"))
    broken = [f"{one.labels[0]}: {one.value:.0f}" for one in checks if one.value]
    at = max(one.at for one in checks)
    if not broken:
        said = ngettext("%(count)d rule holds", "all %(count)d rules hold", len(checks)) % {"count": len(checks)}
        return Part(label, True, said, at)
    todo = _("Keep the database as it is (`hetsched backup`), and look for “invariant broken” in the log.")
    return Part(label, False, _("broken: %(list)s") % {"list": ", ".join(broken)}, at, todo)


def _goldens() -> Iterator[Part]:
    states = list(GoldenPlacement.objects.filter(enabled=True).values_list("state", "name", "checked_at"))
    if not states:
        return
    broken = [name for state, name, _at in states if state == GoldenPlacement.BROKEN]
    at = min((at for _state, _name, at in states if at is not None), default=None)
    if broken:
        todo = _("See what came out on the page of policies; a policy that breaks one cannot be activated.")
        yield Part(_("Golden placements"), False, _("broken: %(list)s") % {"list": ", ".join(broken[:5])}, at, todo)
    else:
        said = ngettext("%(count)d is kept", "%(count)d are kept", len(states)) % {"count": len(states)}
        yield Part(_("Golden placements"), True, said, at)


# -- clusters ----------------------------------------------------------------------------------------------------------


def _shown(cluster: Cluster, subject: Subject) -> Shown:
    connection = connection_of(cluster, subject) if cluster.kind == ClusterKind.KUBERNETES else None
    collectors = [collector_documents.detail(row) for row in cluster.collectors.select_related("cluster")]
    gpu = cluster.gpu_milli_used / (1000 * cluster.card_count) if cluster.card_count else None
    shares = [
        (_("CPU"), percent(_ratio(cluster, CPU))),
        (_("memory"), percent(_ratio(cluster, MEMORY))),
        (_("GPU"), percent(gpu)),
    ]
    agents = agents_of(cluster.pk)
    return Shown(
        cluster=cluster,
        live=cluster.kind == ClusterKind.KUBERNETES,
        connection=connection,
        leading=cluster.leader_until is not None and cluster.leader_until > timezone.now(),
        agents=agents,
        collectors=collectors,
        problems=list(_problems(cluster, connection, agents, collectors)),
        tag=cluster_tag(cluster),
        shares=shares,
    )


def _ratio(cluster: Cluster, resource: str) -> float | None:
    whole = cluster.capacity.get(resource, 0)
    return cluster.requested.get(resource, 0) / whole if whole else None


def _problems(
    cluster: Cluster, connection: ConnectionDetail | None, agents: dict[str, Any] | None, collectors: list[Any]
) -> Iterator[Problem]:
    name = {"cluster": cluster.name}
    here = f"#cluster-{cluster.name}"
    if cluster.kind == ClusterKind.KUBERNETES:
        yield from _of_connection(cluster, connection, name, here)
    if not cluster.node_count:
        todo = _("Import nodes from a file.") if connection is None else _("They come once the cluster is followed.")
        yield Problem(_WAIT, _("%(cluster)s has no nodes.") % name, todo, here, _("look"))
    elif lame := cluster.node_count - cluster.ready_count:
        said = ngettext(
            "%(count)d node of %(cluster)s is not ready or takes nothing new.",
            "%(count)d nodes of %(cluster)s are not ready or take nothing new.",
            lame,
        )
        url = f"{reverse('nodes')}?{urlencode({'cluster': cluster.name, 'q': 'state!=ready'})}"
        todo = _("See which, and why; a cordoned one waits for whoever cordoned it.")
        yield Problem(_WAIT, said % {**name, "count": lame}, todo, url, _("these nodes"))
    if agents is not None and agents["reporting"] < agents["all"]:
        silent = agents["all"] - agents["reporting"]
        said = ngettext(
            "%(count)d agent of %(cluster)s is silent.", "%(count)d agents of %(cluster)s are silent.", silent
        )
        todo = _("Look whether its pod runs there and its token is valid: kubectl logs daemonset/hetsched-agent")
        yield Problem(_WAIT, said % {**name, "count": silent}, todo, here, _("look"))
    if agents is not None and agents["doubted"]:
        said = ngettext(
            "%(count)d node of %(cluster)s has facts in quarantine.",
            "%(count)d nodes of %(cluster)s have facts in quarantine.",
            agents["doubted"],
        )
        url = f"{reverse('node', args=[agents['doubted_first']])}?{urlencode(name)}#quarantine"
        todo = _("Rule on them: what is missing takes nothing new, what grew does not count yet.")
        yield Problem(_BAD, said % {**name, "count": agents["doubted"]}, todo, url, _("the first one"))
    for row in collectors:
        if row.enabled and not row.up:
            said = _("The source %(source)s of %(cluster)s does not answer: %(why)s") % {
                **name, "source": row.name, "why": row.failure or _("it was never heard of"),
            }  # fmt: skip
            todo = _("Look at its address, token and network; requests count instead of measured use meanwhile.")
            yield Problem(_WAIT, said, todo, here, _("look"))


def _of_connection(
    cluster: Cluster, connection: ConnectionDetail | None, name: dict[str, str], here: str
) -> Iterator[Problem]:
    if connection is None:
        yield Problem(_BAD, _("%(cluster)s is not connected.") % name, _("Say how it is reached."), here, _("look"))
        return
    if connection.stale is not None:
        said = _("What is known of %(cluster)s is too old to decide on: %(why)s") % {
            **name, "why": connection.stale.reason,
        }  # fmt: skip
        todo = (
            _("Run `hetsched scheduler`, and look at its log.")
            if connection.follower is None
            else _("Test the connection: it names missing rights and what does not answer.")
        )
        yield Problem(_BAD, said, todo, here, _("look"))
    odd = sum(len(one.quarantined) for one in connection.resources)
    if odd:
        said = ngettext(
            "%(count)d object of %(cluster)s cannot be read.", "%(count)d objects of %(cluster)s cannot be read.", odd
        )
        todo = _("They were left out; below stands which, and what is wrong with them.")
        yield Problem(_WAIT, said % {**name, "count": odd}, todo, here, _("look"))
    for policy in connection.policies:
        if not policy.accepted:
            said = _("Policy %(policy)s of %(cluster)s is not accepted: %(why)s") % {
                **name, "policy": policy.name, "why": f"{policy.place} {told(policy.message)}".strip(),
            }  # fmt: skip
            yield Problem(
                _WAIT, said, _("Mend it in the cluster; the version before counts meanwhile."), here, _("look")
            )
