"""Import and export of a whole cluster as files.

An import is one transaction: nodes are replaced, running pods of the file become rows with reservations, and hetsched's
own placements stay. The whole import is rejected if it contradicts these placements: a node that holds hetsched's pods
is missing or too small, a pod name is in use, or two pods hold the same GPU. Pods of the file that do not run yet are
submitted.
An export has the format of an import and contains hetsched's placements as running pods, so an imported copy leads to
the same decisions.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from django.db import IntegrityError
from django.utils import timezone

from hetsched.contracts.cpuset import parse_cpuset
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.contracts.objects.allocation import EMPTY, Allocation
from hetsched.contracts.objects.cards import cards_of
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.objects.policy import PolicySpec
from hetsched.contracts.objects.workload import PodSpec
from hetsched.contracts.units import GPU_RESOURCES
from hetsched.engine.cluster.state import ClusterState
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.inventory.actions import (
    cluster_topic,
    create_cluster,
    node_topic,
    recompute_totals,
    replace_nodes,
)
from hetsched.inventory.facts import merge_agent_facts
from hetsched.inventory.models import Cluster, ClusterKind, Node
from hetsched.inventory.node_loads import Conflict, advance
from hetsched.inventory.signals import inventory_changed
from hetsched.inventory.tiles import node_facts, node_load, without_nulls
from hetsched.journal.audit import Actor
from hetsched.journal.audit import record as audit
from hetsched.journal.publish import difference, publish_many
from hetsched.placement.queries.pod_counts import cluster_counts
from hetsched.placement.queries.topics import Document, cluster_document, held_documents
from hetsched.policies.actions import is_cluster_owned, save_draft, try_activate
from hetsched.policies.effective import active_specs
from hetsched.policies.models import Policy
from hetsched.storage.batches import batched
from hetsched.storage.write_lock import write_transaction

from ..cluster_snapshot import load_state
from ..lifecycle import HOLDING, QUEUED
from ..models import Pod, Reservation
from ..models.holds import MARK
from ..reservation_ledger import ReservedPod, insert, rewrite_loads
from .submissions import submit

_HOLDING = [state.value for state in HOLDING]


def import_cluster(
    content: ClusterContent,
    *,
    name: str,
    kind: str = ClusterKind.OFFLINE,
    actor: Actor,
    reason: str = "",
    policy_name: str = "hetsched",
    demo_seed: int = 0,
) -> Cluster:
    """Replace the content of the cluster `name` with `content`; create it with this kind if it does not exist.

    Raises: InputError `ClusterIsLive`, `NodeHoldsPods`, `NodeTooSmall`, `PodExists`, `CardHeldTwice`, or the errors of
    `create_cluster`, `submit` and the policy actions. After an error nothing has changed.
    """
    if not content.nodes:
        raise InputError("ClusterEmpty", "the files contain no node", hint="A cluster needs at least one Node object")
    try:
        with write_transaction():
            known = Cluster.objects.filter(name=name).first()
            if known is None:
                known = create_cluster(name=name, kind=kind, policy_name=policy_name, actor=actor, reason=reason)
            if known.kind == ClusterKind.KUBERNETES:
                raise InputError(
                    "ClusterIsLive", Message("{cluster} is a live cluster and accepts no import", cluster=name)
                )
            cluster = advance(known.pk)
            if demo_seed:
                cluster.demo_seed = demo_seed
            _import_policies(content.policies, actor, name)
            before, nodes_before = cluster_document(cluster)["nodes"], node_documents(cluster)
            _replace(cluster, content)
            audit(
                actor=actor.name, role=actor.role, action="cluster.import", obj=cluster, reason=reason,
                details={"nodes": len(content.nodes), "running": len(content.running), "pending": len(content.pending)},
            )  # fmt: skip
            inventory_changed.send(sender=Cluster, cluster=cluster)
            _publish(cluster, before, nodes_before)
            if content.pending:
                submit(cluster, content.pending, actor=actor, name=f"import-{cluster.revision}")
    except (IntegrityError, Conflict) as error:
        message = "the file assigns the same GPU or CPU to two pods, or a concurrent request used the same name"
        raise InputError(
            "CardHeldTwice", message, hint="Check the annotation hetsched.io/allocation of the running pods"
        ) from error
    return cluster


def _import_policies(specs: Sequence[PolicySpec], actor: Actor, cluster: str) -> None:
    """Activate new policies; save a draft if an existing policy of the same name differs.

    A policy that breaks a golden placement stays a draft. Cluster-owned policies do not change.
    """
    known = active_specs({spec.name for spec in specs})
    for spec in specs:
        own = known.get(spec.name)
        if own is None:
            version = save_draft(spec, actor=actor, reason=Message("import of {cluster}", cluster=cluster)).version
            try_activate(spec.name, version, actor=actor, reason=Message("import of {cluster}", cluster=cluster))
        elif msgspec.structs.replace(own, version=spec.version) != spec and not is_cluster_owned(spec.name):
            save_draft(spec, actor=actor, reason=Message("import of {cluster}", cluster=cluster))


def _replace(cluster: Cluster, content: ClusterContent) -> None:
    reservations = Reservation.objects.filter(cluster=cluster, active=True, pod__origin__in=(Pod.SUBMITTED, Pod.HELD))
    ours = list(reservations.select_related("pod", "node").defer("node__report"))
    names = {report.name for report in content.nodes}
    lost = sorted({reservation.node.name for reservation in ours} - names)
    if lost:
        raise InputError(
            "NodeHoldsPods",
            Message(
                "{n} node(s) with placed pods are missing from the files; the first is {node}",
                n=len(lost),
                node=lost[0],
            ),
            hint="Cancel these workloads first, or keep the nodes",
        )
    our_node = {reservation.pod.key: reservation.node.name for reservation in ours}
    arriving = [pod for pod in content.running if our_node.get(pod.key) != pod.node_name]
    state = _state_after_import(content, ours, arriving)
    Pod.objects.filter(cluster=cluster, origin=Pod.IMPORTED).delete()
    replace_nodes(cluster, merge_agent_facts(cluster, content.nodes))
    _insert_running(cluster, arriving, state)
    rewrite_loads(cluster)
    recompute_totals(cluster)
    cluster.baseline_revision = cluster.revision
    cluster.definitions = msgspec.structs.replace(content, nodes=(), running=(), pending=(), policies=(), warnings=())
    cluster.save(update_fields=["baseline_revision", "definitions", "demo_seed"])


def _state_after_import(
    content: ClusterContent, ours: Sequence[Reservation], arriving: Sequence[PodSpec]
) -> ClusterState:
    """Return the state after the import; running pods without named GPUs get GPUs assigned.

    Raises: InputError `PodExists`, or `NodeTooSmall` if hetsched's own pods do not fit any more.
    """
    own = [msgspec.structs.replace(r.request, node_name=r.node.name, allocation=r.allocation) for r in ours]
    taken = {pod.key for pod in own}
    for pod in arriving:
        if pod.key in taken:
            message = Message("{pod} already runs on another node of this cluster", pod=pod.key)
            raise InputError("PodExists", message, place=pod.key)
    state = ClusterState.of(content, running=[*own, *arriving])
    columns = state.columns
    free = columns.field("allocatable") - columns.field("requested")
    for pod in own:
        row = state.row_of[pod.node_name]
        report = state.reports[row]
        # GPUs listed in the report are checked per GPU, not by count, because pods may share a GPU.
        by_card = frozenset(GPU_RESOURCES if report.gpus is not None else ())
        asked = {resource for resource, amount in pod.shape.requests if amount} - by_card
        asked -= (pod.allocation or EMPTY).device_resources
        positions = [state.resources.index[resource] for resource in asked]
        overfull = (free[positions, row] < 0).any() or (columns.field("card_milli_free")[:, row] < 0).any()
        if overfull or _lacks_devices(report, pod.allocation or EMPTY):
            message = Message("node {node} has too little capacity for its placed pods", node=pod.node_name)
            raise InputError("NodeTooSmall", message, place=pod.node_name)
    return state


def _lacks_devices(report: NodeReport, allocation: Allocation) -> bool:
    """Return True if the node lacks a GPU or a CPU of the allocation."""
    zones = report.numa.zones if report.numa else ()
    cpus = frozenset[int]().union(*(parse_cpuset(zone.cpus or "") for zone in zones))
    lost = {card.index for card in allocation.gpus} - {card.index for card in cards_of(report)}
    return bool(lost) or not all(parse_cpuset(zone.cpus or "") <= cpus for zone in allocation.zones)


def _insert_running(cluster: Cluster, running: Sequence[PodSpec], state: ClusterState) -> None:
    now = timezone.now()
    node_ids = dict(cluster.nodes.values_list("name", "id"))
    pods = [
        Pod.charged(
            cluster,
            spec,
            node_ids.get(spec.node_name),
            state.placed_pods[spec.key].allocation if spec.key in state.placed_pods else None,
            now,
        )
        for spec in running
    ]
    _check_names_unused(cluster, running)
    Pod.objects.bulk_create(pods, batch_size=500)
    reserved = [
        ReservedPod(pod.pk, pod.node_id, pod.spec, pod.allocation or EMPTY) for pod in pods if pod.node_id is not None
    ]
    insert(cluster, reserved, cluster.leader_epoch, now)


def _check_names_unused(cluster: Cluster, running: Sequence[PodSpec]) -> None:
    arriving = {pod.key for pod in running}
    waiting = [*_HOLDING, *(state.value for state in QUEUED)]
    for some in batched(sorted({pod.name for pod in running})):
        for pod in Pod.objects.filter(cluster=cluster, name__in=some, state__in=waiting).only("namespace", "name"):
            if pod.key in arriving:
                message = Message("{pod} already exists in this cluster", pod=pod.key)
                raise InputError("PodExists", message, place=pod.key)


def node_documents(cluster: Cluster) -> dict[str, Document]:
    """Return the documents of all nodes of a cluster, with two queries."""
    pods = held_documents(cluster=cluster)
    documents: dict[str, Document] = {}
    for node in Node.objects.filter(cluster=cluster):
        node.cluster = cluster
        documents[node.name] = without_nulls({**node_facts(node), **node_load(node), "pods": pods[node.pk]})
    return documents


def _publish(cluster: Cluster, tiles_before: Document, nodes_before: dict[str, Document]) -> None:
    """Publish the changes; node topics are skipped for a new cluster, which has no subscribers yet."""
    nodes_after = node_documents(cluster) if nodes_before else {}
    patches = {
        node_topic(cluster, name): difference(nodes_before.get(name, {}), nodes_after.get(name, {}))
        for name in nodes_before.keys() | nodes_after.keys()
    }
    tiles = difference(without_nulls(tiles_before), without_nulls(cluster_document(cluster)["nodes"]))
    publish_many({**patches, cluster_topic(cluster): lambda: {**cluster_counts(cluster), "nodes": tiles}})


def export_cluster(cluster: Cluster) -> ClusterContent:
    """Return the cluster in import form: nodes, running pods, pending pods, and policies that are not built in."""
    state = load_state(cluster.pk).state
    reports = [state.report_now(row) for row in range(len(state.reports))]
    running: list[PodSpec] = []
    pending: list[PodSpec] = []
    states = [*_HOLDING, *(state.value for state in QUEUED)]
    rows = Pod.objects.filter(cluster=cluster, state__in=states).select_related("node").defer("node__report")
    changed_in_place = Reservation.objects.filter(cluster=cluster, active=True, spec__isnull=False)
    requests = {pk: spec for pk, spec in changed_in_place.values_list("pod_id", "spec") if spec is not None}
    for pod in rows.order_by("id"):
        if pod.state in _HOLDING:
            node_name = pod.node.name if pod.node else pod.spec.node_name
            name = pod.spec.name.replace(MARK, ".")  # Orphaned pods and holds are exported as ordinary pods.
            spec = requests.get(pod.pk, pod.spec)
            running.append(msgspec.structs.replace(spec, name=name, node_name=node_name, allocation=pod.allocation))
        else:
            pending.append(msgspec.structs.replace(pod.spec, policy=pod.policy, policy_rule="annotation"))
    specs = active_specs(set(Policy.objects.values_list("name", flat=True)))
    changed = [
        spec for name, spec in sorted(specs.items()) if msgspec.structs.replace(spec, version=1) != BUILTIN.get(name)
    ]
    return msgspec.structs.replace(
        cluster.definitions,
        nodes=tuple(reports),
        running=tuple(running),
        pending=tuple(pending),
        policies=tuple(changed),
    )
