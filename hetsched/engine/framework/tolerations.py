"""Taints and tolerations.

A toleration matches a taint if its effect is empty or that of the taint, its key is empty or that of the taint, and its
operator is Exists, or Equal with the value of the taint. NoSchedule and NoExecute taints keep a pod off a node unless a
toleration matches; PreferNoSchedule taints only lower the node's score.
Source: Kubernetes documentation, "Taints and Tolerations"; kube-scheduler's TaintToleration plugin.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hetsched.contracts.objects.node_constraints import Toleration
from hetsched.contracts.objects.node_report import HARD_EFFECTS, Taint
from hetsched.engine.cluster.columns import Bools

SOFT_EFFECT = "PreferNoSchedule"


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Return whether one of the tolerations matches the taint."""
    return any(
        toleration.effect in ("", taint.effect)
        and toleration.key in ("", taint.key)
        and (
            toleration.operator == "Exists"
            or (toleration.operator in ("", "Equal") and toleration.value == taint.value)
        )
        for toleration in tolerations
    )


def repelling(tolerations: tuple[Toleration, ...], taints: Iterable[Taint]) -> Taint | None:
    """Return the first taint that keeps a pod off a node, or a claim off a device, or None."""
    hard = (taint for taint in taints if taint.effect in HARD_EFFECTS)
    return next((taint for taint in hard if not tolerates(tolerations, taint)), None)


def tolerated_sets(tolerations: tuple[Toleration, ...], taint_sets: Iterable[tuple[Taint, ...]]) -> Bools:
    """Return a mask over the taint sets: True if the tolerations allow the pod on a node with that set."""
    return np.array([repelling(tolerations, taints) is None for taints in taint_sets], np.bool_)
