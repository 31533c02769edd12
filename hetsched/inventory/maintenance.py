"""Maintenance of GPUs and NUMA zones: they accept no new pods until a given time, and pods that use them stay.

A GPU in maintenance accepts no new pods. A zone in maintenance offers no CPU to pods that request zones. The check
against an empty cluster ignores maintenance, so a pod that fits only on resources in maintenance gets the verdict *not
now* instead of *never fits*. Maintenance is stored as an operator override, so it expires and is listed like any other
override.
"""

from __future__ import annotations

from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message
from hetsched.journal.audit import Actor

from .fact_review import override
from .models import Cluster, Node
from .overrides import MAINTAINED


def set_maintenance(
    cluster: Cluster, node_name: str, part: str, name: str, until: str | None, *, actor: Actor, reason: str
) -> Node:
    """Keep new pods off a GPU or a zone until the time `until`; None ends the maintenance.

    `part` is "card" or "zone". `name` is the index of a GPU or the name of a zone.
    Raises: InputError `NodeUnknown`, `ReasonMissing`, `PartUnknown`, `FactUnknown`, `ExpiryInvalid`.
    """
    if part not in MAINTAINED:
        message = Message("unknown part {text}", text=repr(part[:40]))
        raise InputError("PartUnknown", message, place="part", hint=Message("Known: {text}", text="card, zone"))
    kind, value = MAINTAINED[part]
    stated, action = (value, "node.maintenance") if until is not None else (None, "node.maintenance-end")
    return override(cluster, node_name, f"{kind}.{name}", stated, until, actor=actor, reason=reason, action=action)
