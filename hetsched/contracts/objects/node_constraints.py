"""Constraints on nodes that pods, volumes and devices state: selector requirements, node terms and tolerations."""

from __future__ import annotations

import msgspec


class Toleration(msgspec.Struct, frozen=True):
    """Kubernetes toleration; an empty `key` with `Exists` tolerates all taints, and an empty `effect` all effects."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Expression(msgspec.Struct, frozen=True):
    """Selector requirement with the operator In, NotIn, Exists, DoesNotExist, or for nodes Gt and Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeTerm(msgspec.Struct, frozen=True):
    """Node selector term: all `expressions` (labels) and `fields` (metadata.name) must match; empty matches nothing."""

    expressions: tuple[Expression, ...] = ()
    fields: tuple[Expression, ...] = ()
