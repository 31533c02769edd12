"""Apply a nearest fit to a pod as its user would: change the field in the manifest and parse it again."""

from __future__ import annotations

import re
from typing import Any

from hetsched.adapters.objects.export.pods import pod_object
from hetsched.adapters.objects.fields import FieldView
from hetsched.adapters.objects.pods import PodReader, ReferencedObjects
from hetsched.contracts.api.decision import FieldChange, NearestFit
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.objects.wishes import ARCH, QEMU
from hetsched.contracts.objects.workload import PodSpec
from hetsched.engine.cluster.selectors import expression_text
from hetsched.engine.explain.rule_relaxations import neighbours_text

Plain = dict[str, Any]
_ITEM = re.compile(r"spec\.topologySpreadConstraints\[([0-9]+)\]\.(maxSkew|whenUnsatisfiable)")
_TAINT = re.compile(r"([^=:]+)(?:=([^:]+))?:(\w+)")


def read(plain: Plain) -> PodSpec:
    pod = PodReader(ReferencedObjects.of(ClusterContent())).pod(FieldView(plain))
    assert pod is not None
    return pod


def applied(pod: PodSpec, fit: NearestFit) -> PodSpec:
    """Return the pod with one or two fields changed as the nearest fit suggests."""
    plain = pod_object(pod, compact=True)
    for change in (fit, fit.also):
        if change is not None:
            _write(plain, pod, change)
    return read(plain)


def _write(plain: Plain, pod: PodSpec, change: NearestFit | FieldChange) -> None:
    field, before, after = change.field, change.from_, change.to
    meta, spec = plain["metadata"], plain["spec"]
    if found := re.fullmatch(r"resources\.(requests|limits)\.(.+)", field):
        for amounts in spec["containers"][0]["resources"].values():
            if found[2] in amounts:
                assert found[1] != "requests" or amounts[found[2]] == before
                amounts[found[2]] = after
    elif found := _ITEM.fullmatch(field):
        constraint = spec["topologySpreadConstraints"][int(found[1])]
        assert str(constraint[found[2]]) == before
        constraint[found[2]] = int(after) if found[2] == "maxSkew" else after
    elif field == "spec.tolerations":
        for taint in after.split(", "):
            key, value, effect = _TAINT.fullmatch(taint).groups()  # type: ignore[union-attr]
            toleration = {"key": key, "operator": "Equal" if value else "Exists", "effect": effect}
            spec.setdefault("tolerations", []).append(toleration | ({"value": value} if value else {}))
    elif field == "spec.nodeSelector":
        for label in before.split(", "):
            key, _, value = label.partition("=")
            assert spec["nodeSelector"].pop(key) == value
    elif field == "spec.affinity.nodeAffinity":
        _drop_requirement(spec["affinity"]["nodeAffinity"], pod, before)
    elif field in ("spec.affinity.podAffinity", "spec.affinity.podAntiAffinity"):
        name = field.rpartition(".")[2]
        terms = pod.shape.affinity if name == "podAffinity" else pod.shape.anti_affinity
        written = spec["affinity"][name]["requiredDuringSchedulingIgnoredDuringExecution"]
        dropped = before.split("; ")
        kept = [w for term, w in zip(terms, written, strict=True) if neighbours_text(term) not in dropped]
        spec["affinity"][name]["requiredDuringSchedulingIgnoredDuringExecution"] = kept
    elif field == "spec.containers.ports.hostPort":
        dropped = before.split(", ")
        container = spec["containers"][0]
        container["ports"] = [p for p in container["ports"] if f"{p['hostPort']}/{p['protocol']}" not in dropped]
    else:
        texts = meta.setdefault("labels" if field in (ARCH, QEMU) else "annotations", {})
        if before and field in texts:
            assert texts[field] == before
        texts[field] = after
        if not after:
            del texts[field]


def _drop_requirement(affinity: Plain, pod: PodSpec, text: str) -> None:
    required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = pod.shape.node_terms or ()
    for term, plain in zip(terms, required["nodeSelectorTerms"], strict=True):
        for part, expressions in (("matchExpressions", term.expressions), ("matchFields", term.fields)):
            for position, expression in enumerate(expressions):
                if expression_text(expression) == text and len(term.expressions) + len(term.fields) > 1:
                    del plain[part][position]
                    return
    del affinity["requiredDuringSchedulingIgnoredDuringExecution"]
