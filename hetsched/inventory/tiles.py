"""JSON documents of nodes and clusters for pages, made from database rows by pure functions.

The same function makes the snapshot and the deltas of a live topic. A document always has the same keys; a key without
a value is None, which clears the key in a merge patch. `without_nulls` removes these keys for the snapshot.
Units: `cpu`, `memory` and `gpu` are ratios 0-1 of requested to allocatable, or None if a node has no such resource.
GPUs in maintenance are included in the capacity, because pods may still use them; `maintenance` contains their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
from django.db.models import QuerySet

from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.objects.cards import cards_of
from hetsched.contracts.objects.facts import Maintenance
from hetsched.contracts.objects.node_report import NodeReport
from hetsched.contracts.times import rfc3339
from hetsched.isa import parse
from hetsched.journal.publish import difference

from .models import Cluster, Node

FAMILIES = ("riscv", "arm", "x86", "unknown")
POOL_LABELS = (
    "hetsched.io/pool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "node.kubernetes.io/instance-type",
)
_FAMILY_OF_ARCH = {"amd64": "x86", "386": "x86", "arm64": "arm", "arm": "arm", "riscv64": "riscv"}


def isa_of(report: NodeReport) -> tuple[str, str]:
    """Return the ISA family of a node (riscv, arm, x86 or unknown) and its native ISA string, which may be empty."""
    native = report.isa.native
    if native:
        for source in ("node-label", "cpuinfo"):
            with suppress(InputError):
                return parse(native, source=source).arch, native
        return "unknown", native
    return _FAMILY_OF_ARCH.get(report.labels.get("kubernetes.io/arch", ""), "unknown"), ""


def shorten_isa(isa: str, most: int) -> str:
    """Return an ISA; if it is longer than `most` characters, cut it between extensions or features and append "…"."""
    if len(isa) <= most:
        return isa
    cut = isa.rfind("+" if "+" in isa else "_", 0, most + 1)
    return f"{isa[: cut if cut > 0 else most]}…"


def pool_of(report: NodeReport) -> str:
    """Return the pool by which pages group a node: its pool label, else its GPU model, else `general`."""
    for label in POOL_LABELS:
        if report.labels.get(label):
            return report.labels[label][:63]
    model = next((card.model for card in cards_of(report) if card.model), None)
    return model[:63] if model else "general"


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def tile(node: Node) -> dict[str, Any]:
    """Return the node's tile of the live grid; the column `report` is not read."""
    return {
        "name": node.name,
        "family": node.isa_family,
        "isa": node.isa or None,
        "pool": node.pool,
        "ready": node.ready,
        "cordoned": node.unschedulable,
        "cpu": _ratio(node.requested.get("cpu", 0), node.allocatable.get("cpu", 0)),
        "memory": _ratio(node.requested.get("memory", 0), node.allocatable.get("memory", 0)),
        "gpu": _ratio(node.gpu_milli_used, node.cards_installed * 1000),
        "cards": node.card_count,
        "cardsInstalled": node.cards_installed,
        "maintenance": _maintenance(node.maintenance, node.cards_installed - node.card_count),
        "pods": node.pods,
    }


def _maintenance(parts: Sequence[Maintenance], cards_out: int) -> dict[str, Any] | None:
    """Return the numbers of GPUs and zones in maintenance, the time when all maintenance ends, and the reasons.

    `cards_out` is the number of the node's current GPUs that accept no new pods. It limits the number of GPUs, so that
    GPUs that the node no longer reports are not counted.
    """
    cards = min(sum(maintenance.part == "card" for maintenance in parts), cards_out)
    zones = sum(maintenance.part == "zone" for maintenance in parts)
    if not cards and not zones:
        return None
    reasons = dict.fromkeys(maintenance.reason for maintenance in parts)
    return {
        "cards": cards,
        "zones": zones,
        "until": max(maintenance.until for maintenance in parts),
        "reason": "; ".join(reasons),
    }


_PACKED = (
    "name", "isa_family", "isa", "pool", "ready", "unschedulable", "requested", "allocatable", "gpu_milli_used",
    "card_count", "cards_installed", "maintenance", "pods",
)  # fmt: skip


def pack_tiles(nodes: QuerySet[Node]) -> dict[str, Any]:
    """Return the tiles of many nodes, ordered by name, as columns; the page's script builds the tiles.

    `group` and `isa` are indexes into `groups` (family and pool) and `isas`, -1 for none. `state` is the sum of 1 for a
    cordoned node and 2 for a node that is not ready. Ratios are in ten-thousandths, -1 for none. `maintenance` and
    `installed` are maps from the position of a node to its value, because most nodes have neither. `installed` is the
    number of installed GPUs, if it differs from `cards`.
    """
    groups: dict[tuple[str, str], int] = {}
    isas: dict[str, int] = {}
    maintenance: dict[int, dict[str, Any]] = {}
    all_cards: dict[int, int] = {}
    rows: list[tuple[Any, ...]] = []
    for name, family, isa, pool, ready, cordoned, requested, allocatable, milli, cards, installed, maintained, pods in (
        nodes.order_by("name").values_list(*_PACKED).iterator(chunk_size=2000)
    ):
        if out := _maintenance(maintained, installed - cards):
            maintenance[len(rows)] = out
        if installed != cards:
            all_cards[len(rows)] = installed
        rows.append(
            (
                name,
                groups.setdefault((family, pool), len(groups)),
                isas.setdefault(isa, len(isas)) if isa else -1,
                cordoned + 2 * (not ready),
                _ten_thousandths(requested.get("cpu", 0), allocatable.get("cpu", 0)),
                _ten_thousandths(requested.get("memory", 0), allocatable.get("memory", 0)),
                _ten_thousandths(milli, installed * 1000),
                cards,
                pods,
            )
        )
    names = ("name", "group", "isa", "state", "cpu", "memory", "gpu", "cards", "pods")
    columns = zip(*rows, strict=True) if rows else ([] for _ in names)
    return {
        "groups": list(groups),
        "isas": list(isas),
        "installed": all_cards,
        "maintenance": maintenance,
        **{key: list(column) for key, column in zip(names, columns, strict=True)},
    }


def _ten_thousandths(part: int, whole: int) -> int:
    ratio = _ratio(part, whole)
    return -1 if ratio is None else round(ratio * 10_000)


def node_load(node: Node) -> dict[str, Any]:
    """Return the values of a node's page that change when pods are placed or removed."""
    return {"tile": tile(node), "requested": node.requested, "gpuMilliUsed": node.gpu_milli_used}


def node_facts(node: Node) -> dict[str, Any]:
    """Return a node's inventory facts for its page; the keys of `report` vary."""
    return {
        "name": node.name,
        "cluster": node.cluster.name,
        "cordonedByOperator": node.cordoned_by_operator,
        "reportedAt": rfc3339(node.updated_at),
        "doubts": to_json_types(node.doubts),
        "report": to_json_types(node.report),
    }


# The merge patch that removes all keys of a node's document: those of its facts, its load and its pods.
NO_NODE: dict[str, None] = dict.fromkeys(
    (
        "name", "cluster", "cordonedByOperator", "reportedAt", "doubts", "report", "tile", "requested", "gpuMilliUsed",
        "pods",
    )
)  # fmt: skip


def node_facts_patch(node: Node, before: NodeReport | None) -> dict[str, Any]:
    """Return the merge patch of a node's facts; `before` is its report before the change, None for an added node."""
    facts = node_facts(node)
    if before is not None:
        facts["report"] = difference(without_nulls(to_json_types(before)), without_nulls(facts["report"]))
    return facts


def cluster_head(cluster: Cluster) -> dict[str, Any]:
    """Return the document of a cluster, without its nodes."""
    capacity, requested = cluster.capacity, cluster.requested
    return {
        "name": cluster.name,
        "kind": cluster.kind,
        "policy": cluster.policy_name,
        "revision": cluster.revision,
        "inventoryRevision": cluster.inventory_revision,
        "nodeCount": cluster.node_count,
        "readyCount": cluster.ready_count,
        "cardCount": cluster.card_count,
        "cardsInstalled": cluster.cards_installed,
        "cpu": _ratio(requested.get("cpu", 0), capacity.get("cpu", 0)),
        "memory": _ratio(requested.get("memory", 0), capacity.get("memory", 0)),
        "gpu": _ratio(cluster.gpu_milli_used, cluster.cards_installed * 1000),
    }


def to_json_types(value: Any) -> Any:
    """Convert an object of a type in `hetsched.contracts` to JSON types: mappings, lists and scalars."""
    return msgspec.json.decode(encode(value))


def without_nulls(value: Any) -> Any:
    """Return a document without the keys whose value is None, for a snapshot."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return value
