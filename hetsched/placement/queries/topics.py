"""Documents of the live topics: snapshots and deltas.

Snapshots and deltas are built by the same functions, so old snapshot + deltas == fresh snapshot. Each part of a
document always has the same keys, with None for a missing value: a delta clears such a key, and a snapshot omits it.
Patches that depend on rows of other transactions are computed under the topic's lock (`publish_many` takes a callable
for that).
Topics: `cluster:<name>`, `watch:<name>` (the age of a live cluster's data), `node:<cluster>/<name>` (or `node:<name>`
if only one cluster, or the first, has that node), `workload:<id>`, `decisions` (the latest 50), `policies`, `goldens`,
`plans`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from django.db.models import Model

from hetsched.contracts.documents import to_plain
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, as_message, as_parts, joined, to_column
from hetsched.contracts.objects.allocation import Allocation
from hetsched.contracts.times import rfc3339
from hetsched.inventory.actions import cluster_topic, node_topic
from hetsched.inventory.models import Cluster, Connection, Node
from hetsched.inventory.staleness import watch_document, watch_topic
from hetsched.inventory.tiles import node_facts, node_load, tile, to_json_types, without_nulls
from hetsched.journal.publish import revision_of
from hetsched.placement.models import Decision, Pod, Reservation, Workload
from hetsched.placement.queries.pod_counts import published_metrics
from hetsched.policies.documents import GOLDENS, PLANS, goldens_document, plans_document, policies_document
from hetsched.policies.documents import TOPIC as POLICIES
from hetsched.storage.batches import batched
from hetsched.storage.snapshot_read import consistent_reads
from hetsched.storage.statements import fetch

DECISIONS = "decisions"
LATEST = 50
# Columns that are not read, because they are large and no pod document contains them.
NOT_SHOWN = ("spec", "node__report", "node__allocatable", "node__requested")
# The columns of a pod's published document, in the order of the parameters of `_pod_document`.
_POD_DOCUMENT = (
    "workload_id", "namespace", "name", "state", "node__name", "policy", "decision_id", "message", "allocation",
    "decided_at", "started_at", "finished_at",
)  # fmt: skip

Document = dict[str, Any]


class TopicSnapshot(msgspec.Struct, frozen=True):
    """A topic's full document, which contains the deltas up to `revision` and possibly later deltas."""

    topic: str
    revision: int
    data: Document


def workload_topic(workload_id: str) -> str:
    return f"workload:{workload_id}"


def _time(value: datetime | None) -> str | None:
    return rfc3339(value) if value else None


# -- parts -------------------------------------------------------------------------------------------------------------


def held_document(requests: Mapping[str, int], allocation: Allocation, since: datetime) -> Document:
    """Return the document of a pod's reservation on its node."""
    return {
        "requests": requests,
        "gpus": to_json_types(allocation.gpus),
        "zones": to_json_types(allocation.zones),
        "since": _time(since),
    }


def pod_document(pod: Pod) -> Document:
    """Return the document of one pod of a workload, as in the REST API; this reads `pod.node` but not `pod.spec`."""
    return _pod_document(
        pod.state, pod.node.name if pod.node else None, pod.policy, pod.decision_id, pod.message, pod.allocation,
        pod.decided_at, pod.started_at, pod.finished_at,
    )  # fmt: skip


def pod_documents(pods: Iterable[int]) -> Iterator[tuple[str, str, Document]]:
    """Yield the workload id, key and published document of each of these pods that has a workload."""
    for some in batched(sorted(pods)):
        rows = Pod.objects.filter(pk__in=some, workload__isnull=False).order_by("id")
        for workload_id, namespace, name, *shown in rows.values_list(*_POD_DOCUMENT):
            yield workload_id, f"{namespace}/{name}", published_document(_pod_document(*shown))


def published_document(pod: Document) -> Document:
    """Return a pod's document as published: the message keeps its parameters, so that sockets can redact them."""
    return {**pod, "message": pod["message"] and to_column(pod["message"])}


def _pod_document(
    state: str,
    node: str | None,
    policy: str,
    decision_id: int | None,
    message: str,
    allocation: Allocation | None,
    decided_at: datetime | None,
    started_at: datetime | None,
    finished_at: datetime | None,
) -> Document:
    return {
        "state": state,
        "node": node,
        "policy": policy or None,
        "decision": decision_id,
        "message": message or None,
        "isa": to_json_types(allocation.isa) if allocation and allocation.isa else None,
        "gpus": to_json_types(allocation.gpus) if allocation else None,
        "zones": to_json_types(allocation.zones) if allocation else None,
        "decidedAt": _time(decided_at),
        "startedAt": _time(started_at),
        "finishedAt": _time(finished_at),
    }


def workload_head(workload: Workload) -> Document:
    """Return the document of a workload without its pods."""
    return {
        "id": workload.pk,
        "namespace": workload.namespace or None,
        "name": workload.name,
        "state": workload.state,
        "priority": workload.priority,
        "podCount": workload.pod_count,
        "submittedBy": workload.submitted_by,
        "history": workload.history,
        "createdAt": _time(workload.created_at),
        "decidedAt": _time(workload.decided_at),
        "finishedAt": _time(workload.finished_at),
    }


def decision_document(decision: Decision, cluster_name: str) -> Document:
    """Return one entry of the decisions feed."""
    return {
        "id": decision.pk,
        "cluster": cluster_name,
        "workload": decision.workload_id,
        "pod": f"{decision.namespace}/{decision.pod_name}",
        "verdict": decision.verdict,
        "node": decision.node_name or None,
        "policy": {"name": decision.policy_name, "version": decision.policy_version},
        "score": decision.score,
        "summary": decision.summary,
        # Send the template and its parameters too, so that consoles in other languages can translate the message.
        "message": to_plain(as_message(decision.summary), hook=as_parts),
        "createdAt": _time(decision.created_at),
    }


def decisions_patch(cluster: Cluster, new: Sequence[Decision]) -> Document:
    """Return the patch of the feed that adds these new decisions, which are already written, and removes the oldest."""
    mine = {decision.pk: decision for decision in new}
    newest = _newest(LATEST + len(mine))
    after = newest[:LATEST]
    before = [pk for pk in newest if pk not in mine][:LATEST]
    patch: Document = {str(pk): None for pk in before if pk not in set(after)}
    patch.update({str(pk): decision_document(mine[pk], cluster.name) for pk in after if pk in mine})
    return patch


def _newest(count: int) -> list[int]:
    """Return the newest IDs; the statement skips the ORM because each transaction with decisions runs it."""
    return [pk for (pk,) in fetch(f"SELECT id FROM {Decision._meta.db_table} ORDER BY id DESC LIMIT %s", [count])]  # noqa: S608


# -- whole documents ---------------------------------------------------------------------------------------------------


def cluster_document(cluster: Cluster) -> Document:
    nodes = cluster.nodes.defer("report").order_by("name")
    return {**published_metrics(cluster), "nodes": {node.name: tile(node) for node in nodes}}


def node_document(node: Node) -> Document:
    return {**node_facts(node), **node_load(node), "pods": held_documents(node=node).get(node.pk, {})}


def held_documents(**where: Model) -> dict[int, dict[str, Document]]:
    """Return the documents of the active reservations with these columns, by node ID and pod key."""
    found: dict[int, dict[str, Document]] = defaultdict(dict)
    rows = Reservation.objects.filter(**where, active=True).values_list(
        "node_id", "pod__namespace", "pod__name", "requests", "allocation", "created_at"
    )
    for node_id, namespace, name, requests, allocation, since in rows:
        found[node_id][f"{namespace}/{name}"] = held_document(requests, allocation, since)
    return found


def workload_document(workload: Workload) -> Document:
    pods = workload.pods.select_related("node").defer(*NOT_SHOWN)
    return {**workload_head(workload), "pods": {pod.key: published_document(pod_document(pod)) for pod in pods}}


def decisions_document(cluster: Cluster | None = None) -> Document:
    """Return the latest decisions of one cluster, or of all clusters, as in the `decisions` topic."""
    rows = Decision.objects.all() if cluster is None else Decision.objects.filter(cluster=cluster)
    latest = rows.select_related("cluster").order_by("-id")[:LATEST]
    return {str(decision.pk): decision_document(decision, decision.cluster.name) for decision in latest}


# -- topics by name ----------------------------------------------------------------------------------------------------


def resolve_topic(topic: str) -> str:
    """Return the name under which a topic is published: the short topic of a node becomes `node:<cluster>/<name>`.

    Raises: InputError `TopicUnknown`, or `NodeAmbiguous` if several clusters have a node of this name and the first
    cluster has none.
    """
    return _find(topic)[0]


def snapshot(topic: str) -> TopicSnapshot:
    """Return a topic's document, its revision and the name under which it is published.

    Raises: InputError, as `resolve_topic` does.
    """
    with consistent_reads():
        name, build = _find(topic)
        return TopicSnapshot(name, revision_of(name), without_nulls(build()))


def _find(topic: str) -> tuple[str, Callable[[], Document]]:
    kind, _, name = topic.partition(":")
    if topic == DECISIONS:
        return topic, decisions_document
    if topic == POLICIES:
        return topic, policies_document
    if topic == GOLDENS:
        return topic, goldens_document
    if topic == PLANS:
        return topic, plans_document
    if kind == "cluster":
        cluster = Cluster.objects.filter(name=name).first()
        if cluster is not None:
            return cluster_topic(cluster), lambda: cluster_document(Cluster.objects.get(pk=cluster.pk))
    elif kind == "watch":
        connection = Connection.objects.select_related("cluster").filter(cluster__name=name).first()
        if connection is not None:
            pk = connection.pk
            return watch_topic(connection.cluster), lambda: watch_document(Connection.objects.get(pk=pk))
    elif kind == "workload":
        workload = Workload.objects.filter(pk=name).defer("manifest").first()
        if workload is not None:
            return topic, lambda: workload_document(Workload.objects.defer("manifest").get(pk=workload.pk))
    elif kind == "node":
        node = find_node(name)
        if node is not None:
            key = node.pk
            fresh = Node.objects.select_related("cluster")
            return node_topic(node.cluster, node.name), lambda: node_document(fresh.get(pk=key))
    raise unknown_topic(topic)


def unknown_topic(topic: str) -> InputError:
    """Return the error for a topic that does not exist, or that the caller may not see."""
    return InputError(
        "TopicUnknown",
        Message("unknown topic {text}", text=repr(topic[:120])),
        hint="Topics: cluster:<name>, watch:<name>, node:<name>, decisions, workload:<id>, policies, goldens, plans",
    )


def find_node(name: str, cluster: str = "") -> Node | None:
    """Return the node `<name>` or `<cluster>/<name>`; without a cluster, the first cluster has precedence.

    Raises: InputError `NodeAmbiguous`.
    """
    if not cluster and "/" in name:
        cluster, _, name = name.partition("/")
    rows = Node.objects.filter(name=name).select_related("cluster").order_by("cluster_id")
    if cluster:
        return rows.filter(cluster__name=cluster).first()
    found = list(rows[:3])
    first = Cluster.objects.order_by("id").first()
    if len(found) > 1 and found[0].cluster_id != (first and first.pk):
        message = Message("several clusters have a node named {text}", text=repr(name))
        names = joined(", ", [f"{node.cluster.name}/{name}" for node in found])
        raise InputError("NodeAmbiguous", message, hint=Message("Name the cluster: {names}", names=names))
    return found[0] if found else None
