"""Plan and apply the fields and objects that discovery writes about nodes; only differences are written.

Users, kubelets and Node Feature Discovery also write labels and objects of nodes. Discovery must not overwrite a label
that another manager set. Everything is applied under one field manager and without force. Labels and annotations form
groups: native ISA, emulation, staleness. If another manager sets one key of a group to a different value, discovery
removes its own keys of that group. Discovery does not change objects without its managed-by label. Objects have their
Node as owner and are garbage-collected with it; objects of nodes that stopped reporting are kept.
Source: Kubernetes documentation, "Server-Side Apply"; topology.node.k8s.io v1alpha2.
Invariant: after a plan is applied, the next plan is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from hetsched.adapters.objects import keys
from hetsched.adapters.objects.export.cluster import card_object, topology_object
from hetsched.adapters.objects.node_labels import LabelGroup, coarse_labels, emulated_labels, native_labels
from hetsched.contracts.api.discovery import FieldConflict
from hetsched.contracts.documents import encode
from hetsched.contracts.objects.node_report import NodeReport, NumaReport, NumaZone
from hetsched.contracts.units import DISK_MBPS, GPU_RESOURCES, NETWORK_MBPS, parse_amount

from .api import Api, ApiFailure, Resource
from .field_ownership import applied, managers, owners
from .resources import NODE_GPUS, NODES, TOPOLOGIES

MANAGER = keys.DISCOVERY
OUR_RESOURCES = (NETWORK_MBPS, DISK_MBPS)
REFUSAL = "discovery changes nothing else"  # message of the admission policy in deploy/discovery
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
# Keys that discovery writes only as annotations, by group. If a user sets a label with such a key, discovery does not
# write the group.
_THEIRS_BY_LABEL = ((keys.ISA,), (keys.EMULATED_ISA, keys.CROSS_ISA), ())

Plain = dict[str, Any]


class PublishedNode(msgspec.Struct, frozen=True):
    """A node and the objects about it, as read from the API server; an object that does not exist is None."""

    node: Plain
    topology: Plain | None = None
    gpus: Plain | None = None

    @property
    def name(self) -> str:
        return str(self.node["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.node["metadata"]["uid"])

    @property
    def labels(self) -> dict[str, str]:
        return self.node["metadata"].get("labels") or {}

    @property
    def annotations(self) -> dict[str, str]:
        return self.node["metadata"].get("annotations") or {}


class AcceptedNodeFacts(msgspec.Struct, frozen=True):
    """Accepted agent facts of a node; `facts` is None if no agent has reported.

    `stale_since` is set if the agent stopped reporting. `doubted` lists the resources whose reported amount is
    quarantined; for these, the published amount is kept.
    """

    facts: NodeReport | None = None
    stale_since: str = ""
    doubted: frozenset[str] = frozenset()


class Write(msgspec.Struct, frozen=True):
    """One server-side apply; `what` describes it in one word."""

    resource: Resource
    name: str
    body: Plain
    what: str
    part: str = ""


class ServedKinds(msgspec.Struct, frozen=True):
    """Optional kinds that the cluster serves."""

    topologies: bool = True
    gpus: bool = True


def plan(
    published: PublishedNode, known: AcceptedNodeFacts, served: ServedKinds
) -> tuple[list[Write], list[FieldConflict]]:
    """Return the writes for a node, and the conflicts: values of other managers that discovery does not replace."""
    conflicts: list[FieldConflict] = []
    writes = [_labels(published, known, conflicts)]
    facts = known.facts
    if facts is not None:
        writes.append(_capacity(published, facts, known.doubted, conflicts))
        if served.topologies and facts.numa is not None and facts.numa.zones:
            writes.append(_object(TOPOLOGIES, published, published.topology, _topology(facts.numa), conflicts))
        if served.gpus and facts.gpus is not None and _counts(published, facts):
            cards = {"spec": {"cards": [card_object(card) for card in facts.gpus]}}
            writes.append(_object(NODE_GPUS, published, published.gpus, cards, conflicts))
    return [write for write in writes if write is not None], conflicts


def perform(api: Api, write: Write) -> None:
    """Apply one write.

    Raises: ApiFailure; status 409 if another manager owns a field or the node was recreated, 404 if the node was
    deleted.
    """
    path = write.resource.path(name=write.name, part=write.part)
    api.send("PATCH", path, encode(write.body), query={"fieldManager": MANAGER}, content=_APPLY)


def is_guarded(api: Api, node: str) -> bool:
    """Return whether the admission policy limits the writes of discovery to its own fields.

    It is tested with a dry-run patch of a label that no node has.

    Raises: ApiFailure.
    """
    try:
        body = b'{"metadata":{"labels":{"hetsched.io/unguarded":"true"}}}'
        api.send("PATCH", NODES.path(name=node), body, query={"dryRun": "All"}, content=_MERGE)
    except ApiFailure as failure:
        if REFUSAL in failure.message:
            return True
        raise
    return False


# -- labels and annotations ------------------------------------------------------------------------------------------


def _labels(published: PublishedNode, known: AcceptedNodeFacts, conflicts: list[FieldConflict]) -> Write | None:
    by_label = owners(published.node, "metadata", "labels")
    by_annotation = owners(published.node, "metadata", "annotations")
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    for group, by_person in zip(_groups(published, known), _THEIRS_BY_LABEL, strict=True):
        theirs = [
            *_contradicted(published.name, "label", published.labels, by_label, group.labels),
            *_contradicted(published.name, "annotation", published.annotations, by_annotation, group.annotations),
            *(FieldConflict(published.name, f"label {key}", published.labels[key], "") for key in by_person
              if key in published.labels),
        ]  # fmt: skip
        conflicts += theirs
        if not theirs:
            labels |= group.labels
            annotations |= group.annotations
    if (labels, annotations) == _ours(published):
        return None
    said = {name: texts for name, texts in (("labels", labels), ("annotations", annotations)) if texts}
    return Write(NODES, published.name, {**_head(NODES), "metadata": {**_meta(published), **said}}, "labels")


def _ours(published: PublishedNode) -> tuple[dict[str, str], dict[str, str]]:
    """Return the labels and annotations that discovery applied before."""
    return (
        _present(published.labels, applied(published.node, MANAGER, "metadata", "labels")),
        _present(published.annotations, applied(published.node, MANAGER, "metadata", "annotations")),
    )


def _groups(published: PublishedNode, known: AcceptedNodeFacts) -> Iterator[LabelGroup]:
    """Yield the desired labels and annotations of a node, group by group."""
    labels, annotations = _ours(published)
    facts = known.facts
    if facts is not None and facts.isa.native is not None:
        yield native_labels(facts.isa)
    elif keys.ISA in annotations:  # the ISA reported earlier is kept while the agent does not report
        bound = {key: annotations[key] for key in (keys.ISA, keys.ISA_BOUND) if key in annotations}
        yield LabelGroup({key: value for key, value in labels.items() if key != keys.QEMU}, bound)
    else:
        yield coarse_labels(published.labels.get(keys.KUBERNETES_ARCH, ""))
    if facts is not None:
        yield emulated_labels(facts.isa)
    else:
        said = {key: annotations[key] for key in (keys.EMULATED_ISA, keys.CROSS_ISA) if key in annotations}
        yield LabelGroup({key: labels[key] for key in (keys.QEMU,) if key in labels}, said)
    yield LabelGroup({}, {keys.FACTS_STALE: known.stale_since} if known.stale_since else {})


def _contradicted(
    node: str, kind: str, present: Mapping[str, str], by: Mapping[str, set[str]], wanted: Mapping[str, str]
) -> Iterator[FieldConflict]:
    """Yield the keys that another manager sets to a different value."""
    for key, value in wanted.items():
        if key in present and present[key] != value and by.get(key, set()) != {MANAGER}:
            yield FieldConflict(
                node, f"{kind} {key}", present[key], value, ", ".join(sorted(by.get(key, set()) - {MANAGER}))
            )


def _present(present: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    return {key: present[key] for key in names if key in present}


# -- extended resources ----------------------------------------------------------------------------------------------


def _capacity(
    published: PublishedNode, facts: NodeReport, doubted: frozenset[str], conflicts: list[FieldConflict]
) -> Write | None:
    """Return the patch that publishes network and disk bandwidth as extended resources, or None if nothing changes."""
    allocatable = facts.allocatable
    amounts = {name: str(allocatable[name]) for name in OUR_RESOURCES if name in allocatable and name not in doubted}
    status = published.node.get("status") or {}
    wanted: dict[str, dict[str, str]] = {}
    differs = False
    for part in ("capacity", "allocatable"):
        there = _counted(status.get(part) or {})
        by = owners(published.node, "status", part)
        held = {name: list(_contradicted(published.name, part, there, by, {name: amounts[name]})) for name in amounts}
        for theirs in held.values():
            conflicts += theirs
        ours = _present(there, applied(published.node, MANAGER, "status", part, part="status"))
        wanted[part] = {name: amount for name, amount in amounts.items() if not held[name]}
        wanted[part] |= _present(ours, doubted & ours.keys())
        differs = differs or ours != wanted[part]
    if not differs:
        return None
    body = {**_head(NODES), "metadata": _meta(published), "status": wanted}
    return Write(NODES, published.name, body, "capacity", part="status")


def _counted(stated: Mapping[str, str]) -> dict[str, str]:
    """Return hetsched's resources as plain numbers, so that they can be compared: an API server writes 10000 as 10k."""
    return {name: str(parse_amount(name, stated[name])) for name in OUR_RESOURCES if name in stated}


# -- objects ---------------------------------------------------------------------------------------------------------


def _object(
    kind: Resource, published: PublishedNode, there: Plain | None, content: Plain, conflicts: list[FieldConflict]
) -> Write | None:
    """Return the request that writes an object about the node; None if it is unchanged or not managed by discovery."""
    if there is not None:
        meta = there["metadata"]
        if (meta.get("labels") or {}).get(keys.MANAGED_BY) != MANAGER:
            conflicts.append(
                FieldConflict(
                    published.name, kind.kind, "an object not managed by hetsched", "", ", ".join(managers(there))
                )
            )
            return None
        owned = {owner.get("uid") for owner in meta.get("ownerReferences") or ()}
        if owned == {published.uid} and all(there.get(name) == value for name, value in content.items()):
            return None
    owner = {"apiVersion": "v1", "kind": "Node", "name": published.name, "uid": published.uid}
    own = {"name": published.name, "labels": {keys.MANAGED_BY: MANAGER}, "ownerReferences": [owner]}
    return Write(kind, published.name, {**_head(kind), "metadata": own, **content}, kind.kind)


def _counts(published: PublishedNode, facts: NodeReport) -> bool:
    """Return whether a node needs a GPU object; an empty object is written only for nodes that offer GPU resources."""
    offered = (published.node.get("status") or {}).get("allocatable") or {}
    return bool(facts.gpus) or published.gpus is not None or any(name in offered for name in GPU_RESOURCES)


def _topology(numa: NumaReport) -> Plain:
    # The kubelet's grants change with every pod, so they are not published; only the agent's report contains them.
    calm = msgspec.structs.replace(numa, zones=tuple(map(_rounded_capacity, numa.zones)), grants=())
    content = topology_object(calm, None)
    for zone in content["zones"]:
        for resource in zone["resources"]:
            resource["available"] = resource["allocatable"]  # a required field of the CRD
    return content


def _rounded_capacity(zone: NumaZone) -> NumaZone:
    """Round a zone's offline capacity down to 0.1 CPU: it changes often, and each published change is a write."""
    remaining = zone.offline_capacity_millis
    allocatable = {name: zone.allocatable.get(name, amount) for name, amount in zone.capacity.items()}
    return msgspec.structs.replace(
        zone, offline_capacity_millis=None if remaining is None else remaining // 100 * 100, allocatable=allocatable
    )


def _head(kind: Resource) -> Plain:
    return {"apiVersion": kind.api_version, "kind": kind.kind}


def _meta(published: PublishedNode) -> Plain:
    """Return metadata with the node's name and uid, so that a recreated node of the same name rejects the write."""
    return {"name": published.name, "uid": published.uid}
