"""Reader of a Node into a `NodeReport`, and of a NodeUsage.

Allocatable is used, or capacity if allocatable is absent. A node without a Ready condition is treated as ready, because
hand-written files seldom have conditions. If a label has an invalid value, the fact is unknown and `problems` contains
the reason; the file stays valid.
Source: Kubernetes core/v1 NodeStatus.
"""

from __future__ import annotations

import msgspec

from hetsched.contracts.message import Message
from hetsched.contracts.objects.node_features import REQUIRED_BY
from hetsched.contracts.objects.node_report import NodeReport, Usage

from . import keys
from .fields import FieldView, metadata
from .foreign_gpu_sharing import registered_cards
from .node_images import image_sizes
from .node_isa import isa_report
from .selectors import taint

STALE_PROBLEM = "FactsStale"
_MOST_ADDRESSES = 16
_LONGEST_VERSION = 64
_DROPPED = ("kubectl.kubernetes.io/last-applied-configuration", keys.EXPORT_PROBLEMS, keys.EXPORT_IMAGES)


def node(root: FieldView) -> NodeReport:
    """Read a Node."""
    meta, spec, status = metadata(root), root.view("spec"), root.view("status")
    labels = meta.labels()
    annotations = {key: value for key, value in meta.annotations().items() if key not in _DROPPED}
    problems: list[str] = []
    isa_offered = isa_report(labels, annotations, problems)
    if keys.FACTS_STALE in annotations:
        since = annotations[keys.FACTS_STALE][:40]
        problems.append(f"{STALE_PROBLEM}: the facts of this node were last confirmed at {since}")
    if keys.EXPORT_PROBLEMS in meta.view("annotations"):
        problems.extend(_exported_problems(meta.view("annotations")))
    registered = registered_cards(annotations, problems)
    ready = True
    for condition in status.views("conditions"):
        if condition.text("type") == "Ready":
            ready = condition.text("status") == "True"
    return NodeReport(
        name=meta.text("name"),
        uid=meta.text("uid"),
        labels=labels,
        annotations=annotations,
        taints=tuple(taint(view) for view in spec.views("taints")),
        unschedulable=spec.flag("unschedulable"),
        ready=ready,
        allocatable=status.amounts("allocatable" if "allocatable" in status else "capacity"),
        isa=isa_offered,
        gpus=registered,
        problems=tuple(problems),
        source="file",
        addresses=_addresses(status),
        declared_features=tuple(name for name in REQUIRED_BY if name in status.texts("declaredFeatures")),
        image_sizes=image_sizes(meta, status),
        kubelet_version=status.view("nodeInfo").text("kubeletVersion")[:_LONGEST_VERSION],
    )


def _addresses(status: FieldView) -> tuple[str, ...]:
    """Read the addresses by which other systems may identify a node; invalid addresses are skipped."""
    found = (view.value.get("address") for view in status.views("addresses"))
    texts = dict.fromkeys(text for text in found if isinstance(text, str) and 0 < len(text) <= 253)
    return tuple(texts)[:_MOST_ADDRESSES]


def _exported_problems(annotations: FieldView) -> list[str]:
    try:
        return msgspec.json.decode(annotations.text(keys.EXPORT_PROBLEMS), type=list[str])
    except (msgspec.DecodeError, RecursionError) as error:
        annotations.fail(Message("the value is not a list of strings: {text}", text=str(error)), keys.EXPORT_PROBLEMS)


def usage(root: FieldView) -> Usage:
    """Read a NodeUsage."""
    return Usage(root.amounts("usage"), root.text("observedAt"), root.text("source"), root.flag("stale"))
