"""The health page: problems with their fixes, each cluster, and the components of the installation.

The values are the same as in `/readyz`, `/metrics` and `clusters/{name}/connection/`. Each problem has a fix and a
link. The page shows names of credentials, hosts and namespaces, but never the content of credentials.
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
from hetsched.inventory.agent_messages import count_agents
from hetsched.inventory.models import Cluster, ClusterKind
from hetsched.inventory.tiles import tile
from hetsched.journal import counters, metric_names
from hetsched.policies.models import GoldenPlacement, Policy
from web.api.clusters import collectors as collector_documents
from web.api.clusters.connections import ConnectionDetail, cluster_tag, connection_of
from web.api.monitoring.health import Component, components, late_seconds
from web.translation import translate

from ..amounts import percent
from ..shell import Shell, page

_BAD, _WAIT = "bad", "wait"
_MOST_MAINTAINED = 20
# Seconds between two polls of the page; it polls because a component that stops does not send a message.
_SECONDS_BETWEEN_LOOKS = 30


class HealthProblem(msgspec.Struct, frozen=True):
    """A problem, its fix and a link; `until` is the time at which the problem ends by itself."""

    tone: str
    text: str
    todo: str
    url: str = ""
    label: str = ""
    until: str = ""


class ComponentState(msgspec.Struct, frozen=True):
    """State of one component: whether it works (None if unknown), and details."""

    name: str
    ok: bool | None
    said: str
    at: datetime | None = None
    todo: str = ""


class ClusterHealth(msgspec.Struct, frozen=True):
    """State of one cluster on the health page."""

    cluster: Cluster
    live: bool
    connection: ConnectionDetail | None
    leading: bool
    agents: dict[str, Any] | None
    collectors: list[Any]
    problems: list[HealthProblem]
    tag: str
    shares: list[tuple[str, str]]


@page("clusters")
def clusters(shell: Shell) -> HttpResponse:
    if shell.cluster is not None:
        shell.follow(cluster_topic(shell.cluster))
    subject = subject_of(shell.request)
    parts = list(_parts())
    shown = [_shown(cluster, subject) for cluster in shell.clusters]
    problems = [HealthProblem(_BAD, f"{part.name}: {part.said}", part.todo) for part in parts if part.ok is False]
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
        "words": _connection_texts(),
        "policy_names": sorted(Policy.objects.filter(active_version__gt=0).values_list("name", flat=True)),
    }
    return shell.render("clusters", context)


def _connection_texts() -> dict[str, str]:
    """Return the texts of the connection test."""
    return {
        "asking": _("Testing…"),
        "unreachable": _("The server is unreachable."),
        "well": _("ok"),
        "wrong": _("failed"),
        "allWell": _("{name}: all checks passed"),
        "someWrong": _("{name}: checks failed"),
        "nothing": _("{name} is an offline cluster: there is no API server to test"),
    }


# -- the installation --------------------------------------------------------------------------------------------------


def _parts() -> Iterator[ComponentState]:
    found = components()
    words = {
        "database": (
            _("Database"),
            _("Check the database server and DATABASE_URL. hetsched cannot work without the database."),
        ),
        "migrations": (
            pgettext("of a database", "Migrations"),
            _("Run `python manage.py migrate`. The database schema is older than the program."),
        ),
        "pages": (_("Pages"), _("Reinstall hetsched. Its templates or static files are missing or broken.")),
        "broker": (
            _("Redis"),
            _("Check Redis and REDIS_URL. hetsched stores submissions but does not schedule pods until Redis works."),
        ),
        "outbox": (
            _("Live events"),
            _("Check the workers of the queue “io”. Pages do not update until these workers run."),
        ),
        "effects": (
            _("Effects of placements"),
            _("Run `hetsched scheduler`. Node loads, workload states and the audit trail lack the latest placements."),
        ),
        "scheduler": (_("Scheduling"), _("Check the workers of the queue “schedule” and their log.")),
        "watch": (
            _("Informers"),
            _("Run `hetsched scheduler`. The list below shows the clusters without an informer and the reason."),
        ),
        "tokens": (
            _("Stored tokens"),
            _("Test the connections below. They show which token was not renewed, its end and the reason."),
        ),
    }
    now = timezone.now()
    for name, (label, todo) in words.items():
        component = found[name]
        at = None if component.age_seconds is None else now - timedelta(seconds=component.age_seconds)
        yield ComponentState(label, component.ok, _component(name, component), at, "" if component.ok else todo)
    if found["database"].ok and found["migrations"].ok:
        yield from _queues()
        yield _invariants()
        yield from _goldens()


def _component(name: str, component: Component) -> str:
    """Return the details of a component as text: its state, or the meaning of the time that is shown with it."""
    idle = {
        "outbox": _("all events are sent"),
        "effects": _("all effects are written"),
        "scheduler": _("no pod is waiting for its first attempt"),
        "migrations": _("all migrations are applied"),
        "tokens": _("no renewal has failed"),
    }
    late = {
        "outbox": _("oldest unsent live event"),
        "effects": _("oldest placement without written effects"),
        "scheduler": _("oldest pod without a scheduling attempt"),
    }
    if component.ok and component.age_seconds is None and name in idle:
        return idle[name]
    if component.age_seconds is not None and name in late:
        return late[name]
    return component.detail or (_("works") if component.ok else _("does not work"))


def _queues() -> Iterator[ComponentState]:
    now = timezone.now()
    at = {sample.labels[0]: sample.at for sample in counters.samples(metric_names.CANARY)}
    for queue in settings.HETSCHED_VITAL_QUEUES:
        ok = queue in at and (now - at[queue]).total_seconds() < late_seconds(queue)
        text = _("test task completed")
        if not ok:
            text = _("no test task completed recently") if queue in at else _("no worker has connected")
        todo = "" if ok else _("Start a worker for this queue: celery -A hetsched.project.celery:app worker -Q …")
        yield ComponentState(_("Queue %(queue)s") % {"queue": queue}, ok, text, at.get(queue), todo)


def _invariants() -> ComponentState:
    checks = counters.samples(metric_names.VIOLATIONS)
    label = _("Invariants")
    if not checks:
        return ComponentState(label, None, _("not checked yet"))
    broken = [f"{sample.labels[0]}: {sample.value:.0f}" for sample in checks if sample.value]
    at = max(sample.at for sample in checks)
    if not broken:
        text = ngettext("%(count)d invariant holds", "all %(count)d invariants hold", len(checks))
        return ComponentState(label, True, text % {"count": len(checks)}, at)
    todo = _(
        "Back up the database (`hetsched backup`) before you change it, and search the log for “invariant broken”."
    )
    return ComponentState(label, False, _("violated: %(list)s") % {"list": ", ".join(broken)}, at, todo)


def _goldens() -> Iterator[ComponentState]:
    states = list(GoldenPlacement.objects.filter(enabled=True).values_list("state", "name", "checked_at"))
    if not states:
        return
    broken = [name for state, name, _at in states if state == GoldenPlacement.BROKEN]
    at = min((at for _state, _name, at in states if at is not None), default=None)
    if broken:
        todo = _(
            "See the results on the policies page. A policy version that breaks a golden placement cannot be activated."
        )
        yield ComponentState(
            _("Golden placements"), False, _("violated: %(list)s") % {"list": ", ".join(broken[:5])}, at, todo
        )
    else:
        text = ngettext("%(count)d passes", "all %(count)d pass", len(states)) % {"count": len(states)}
        yield ComponentState(_("Golden placements"), True, text, at)


# -- clusters ----------------------------------------------------------------------------------------------------------


def _shown(cluster: Cluster, subject: Subject) -> ClusterHealth:
    connection = connection_of(cluster, subject) if cluster.kind == ClusterKind.KUBERNETES else None
    collectors = [collector_documents.detail(row) for row in cluster.collectors.select_related("cluster")]
    gpu = cluster.gpu_milli_used / (1000 * cluster.cards_installed) if cluster.cards_installed else None
    shares = [
        (_("CPU"), percent(_ratio(cluster, CPU))),
        (_("memory"), percent(_ratio(cluster, MEMORY))),
        (_("GPU"), percent(gpu)),
    ]
    agents = count_agents(cluster.pk)
    return ClusterHealth(
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
) -> Iterator[HealthProblem]:
    name = {"cluster": cluster.name}
    here = f"#cluster-{cluster.name}"
    if cluster.kind == ClusterKind.KUBERNETES:
        yield from _of_connection(connection, name, here)
    if not cluster.node_count:
        todo = (
            _("Import nodes from a file.") if connection is None else _("Nodes appear after the cluster is connected.")
        )
        yield HealthProblem(_WAIT, _("%(cluster)s has no nodes.") % name, todo, here, _("show"))
    elif lame := cluster.node_count - cluster.ready_count:
        text = ngettext(
            "%(count)d node of %(cluster)s is not ready or not schedulable.",
            "%(count)d nodes of %(cluster)s are not ready or not schedulable.",
            lame,
        )
        url = f"{reverse('nodes')}?{urlencode({'cluster': cluster.name, 'q': 'state!=ready'})}"
        todo = _("Check these nodes. A cordoned node stays unschedulable until an operator uncordons it.")
        yield HealthProblem(_WAIT, text % {**name, "count": lame}, todo, url, _("show nodes"))
    yield from _in_maintenance(cluster)
    if agents is not None and agents["reporting"] < agents["all"]:
        silent = agents["all"] - agents["reporting"]
        text = ngettext(
            "%(count)d agent of %(cluster)s is not reporting.",
            "%(count)d agents of %(cluster)s are not reporting.",
            silent,
        )
        todo = _("Check that the agent pod is running and its token is valid: kubectl logs daemonset/hetsched-agent")
        yield HealthProblem(_WAIT, text % {**name, "count": silent}, todo, here, _("show"))
    if agents is not None and agents["doubted"]:
        text = ngettext(
            "%(count)d node of %(cluster)s has facts in quarantine.",
            "%(count)d nodes of %(cluster)s have facts in quarantine.",
            agents["doubted"],
        )
        url = f"{reverse('node', args=[agents['doubted_first']])}?{urlencode(name)}#quarantine"
        todo = _(
            "Approve or reject these facts. Until then, hetsched places no new pods on capacity that is reported as "
            "missing, and does not use capacity that is reported as added."
        )
        yield HealthProblem(_BAD, text % {**name, "count": agents["doubted"]}, todo, url, _("show first node"))
    for row in collectors:
        if row.enabled and not row.up:
            text = _("The metric source %(source)s of %(cluster)s does not respond: %(why)s") % {
                **name, "source": row.name, "why": translate(row.failure) or _("no contact yet"),
            }  # fmt: skip
            todo = _(
                "Check the address, token and network of the source. Until the source responds, hetsched uses "
                "requests instead of measured use."
            )
            yield HealthProblem(_WAIT, text, todo, here, _("show"))


def _in_maintenance(cluster: Cluster) -> Iterator[HealthProblem]:
    """Yield the first nodes with GPUs or zones in maintenance, with the reasons."""
    nodes = cluster.nodes.exclude(maintenance=[]).order_by("name").defer("report")
    for node in nodes[:_MOST_MAINTAINED]:
        at = tile(node)["maintenance"]
        if at is None:
            continue
        named = {"node": node.name, "count": at["cards"], "all": node.cards_installed, "zones": at["zones"]}
        said = [
            *([_("%(count)d of %(all)d GPUs") % named] if at["cards"] else []),
            *([ngettext("%(zones)d NUMA zone", "%(zones)d NUMA zones", at["zones"]) % named] if at["zones"] else []),
        ]
        text = _("%(node)s: %(parts)s in maintenance") % {"node": node.name, "parts": ", ".join(said)}
        tab = "gpu" if at["cards"] else "numa"
        url = f"{reverse('node', args=[node.name, tab])}?{urlencode({'cluster': cluster.name})}"
        yield HealthProblem(_WAIT, text, at["reason"], url, _("show node"), at["until"])


def _of_connection(connection: ConnectionDetail | None, name: dict[str, str], here: str) -> Iterator[HealthProblem]:
    if connection is None:
        yield HealthProblem(
            _BAD,
            _("%(cluster)s is not connected.") % name,
            _("Configure the connection of the cluster."),
            here,
            _("show"),
        )
        return
    if connection.stale is not None:
        text = _("The cached state of %(cluster)s is too old for scheduling: %(why)s") % {
            **name, "why": translate(connection.stale.reason),
        }  # fmt: skip
        todo = (
            _("Run `hetsched scheduler` and check its log.")
            if connection.follower is None
            else _("Test the connection. The test lists missing permissions and unreachable endpoints.")
        )
        yield HealthProblem(_BAD, text, todo, here, _("show"))
    odd = sum(len(resource.quarantined) for resource in connection.resources)
    if odd:
        text = ngettext(
            "%(count)d object of %(cluster)s cannot be read.", "%(count)d objects of %(cluster)s cannot be read.", odd
        )
        todo = _("hetsched ignores these objects. The list below shows each object and its error.")
        yield HealthProblem(_WAIT, text % {**name, "count": odd}, todo, here, _("show"))
    for policy in connection.policies:
        if not policy.accepted:
            text = _("Policy %(policy)s of %(cluster)s is invalid: %(why)s") % {
                **name, "policy": policy.name, "why": f"{policy.place} {translate(policy.message)}".strip(),
            }  # fmt: skip
            yield HealthProblem(
                _WAIT,
                text,
                _("Fix the policy in the cluster. The previous version stays active until then."),
                here,
                _("show"),
            )
