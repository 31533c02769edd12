"""Readers of ElasticQuota and PodDisruptionBudget objects.

A quota states `min` and `max` as resource lists; a namespace has one quota. The number of pods that a budget keeps
running is `desiredHealthy` in its status. Without a status, it is computed from the number n of pods in the same file
that the selector matches:
    minAvailable 2 -> 2;   minAvailable 50% -> ceil(n / 2);   maxUnavailable 1 -> n - 1;   30% -> n - ceil(0.3 n)
Source: scheduler-plugins capacity scheduling; Kubernetes policy/v1 and its disruption controller.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hetsched.contracts.message import Message
from hetsched.contracts.objects.cluster import DisruptionBudget, ElasticQuota
from hetsched.contracts.objects.labels import selects
from hetsched.contracts.objects.workload import PodSpec

from .fields import FieldView, metadata
from .pods import namespace_of
from .selectors import label_selector

_PERCENT = re.compile(r"([0-9]{1,3})%", re.ASCII)
_MOST = 2**31 - 1


def elastic_quota(root: FieldView) -> ElasticQuota:
    """Read an ElasticQuota."""
    meta, spec = metadata(root), root.view("spec")
    bounds = (tuple(sorted(spec.amounts(key).items())) for key in ("min", "max"))
    return ElasticQuota(namespace_of(meta), meta.text("name"), *bounds)


def disruption_budget(root: FieldView, pods: Iterable[PodSpec]) -> DisruptionBudget:
    """Read a PodDisruptionBudget; without a status, its `desiredHealthy` is computed from the matching `pods`."""
    meta, spec, status = metadata(root), root.view("spec"), root.view("status")
    namespace, selector = namespace_of(meta), label_selector(spec, "selector")
    if "minAvailable" in spec and "maxUnavailable" in spec:
        message = Message("cannot be combined with {name}", name="minAvailable")
        spec.fail(message, "maxUnavailable", hint="Remove one of the two fields")
    stated = status.maybe_integer("desiredHealthy", most=_MOST)
    least, most = (_amount(spec, key) for key in ("minAvailable", "maxUnavailable"))
    if stated is None:
        count = sum(pod.namespace == namespace and selects(selector, pod.labels) for pod in pods)
        stated = _of(least, count) if least is not None else max(0, count - _of(most or 0, count))
    return DisruptionBudget(namespace, meta.text("name"), selector, stated)


def _amount(spec: FieldView, key: str) -> int | str | None:
    """Return the value of `key`: a number of pods, a percentage as text (`50%`), or None if the key is absent."""
    if not isinstance(spec.value.get(key), str):
        return spec.maybe_integer(key, most=_MOST)
    text = spec.text(key)
    match = _PERCENT.fullmatch(text)
    if match is None or int(match[1]) > 100:
        message = Message("must be a whole number or a percentage up to 100%, not {text}", text=repr(text[:80]))
        spec.fail(message, key, hint="Write a number such as 2, or a percentage such as 50%")
    return text


def _of(amount: int | str, count: int) -> int:
    if isinstance(amount, int):
        return amount
    return -(-int(amount.rstrip("%")) * count // 100)
