"""Pods that ask for the same, by what is read of them.

Problem: reading what a pod asks for takes longer than everything else that is done with an event, and the pods of one
controller ask for the same.
Rule: two pods are alike when `metadata.labels`, `metadata.annotations` and `spec` are equal but for what nobody reads:
which node it is, what runs inside the containers, and the volume with its own token that the API server gives each pod.
Names are not part of it: whoever keeps what was read by this must not keep what was made of a name.
Invariant: what is left out here is read nowhere in `PodReader.template`; a test reads pods with and without.
"""

from __future__ import annotations

from typing import Any

import msgspec

_INSIDE = frozenset({"args", "command", "env", "envFrom", "volumeMounts"})
_TOKEN = frozenset({"name", "projected"})
_encoder = msgspec.json.Encoder()


def likeness(pod: dict[str, Any], namespace: str) -> bytes | None:
    """Return what is equal for pods of a namespace that ask for the same; None for one that is not made like a pod."""
    meta, spec = pod.get("metadata"), pod.get("spec")
    if type(meta) is not dict or type(spec) is not dict:
        return None
    plain = {**spec, "nodeName": bool(spec.get("nodeName"))}
    try:
        for group in ("containers", "initContainers"):
            if spec.get(group):
                plain[group] = [{k: v for k, v in one.items() if k not in _INSIDE} for one in spec[group]]
        if spec.get("volumes"):
            plain["volumes"] = [None if one.keys() <= _TOKEN else one for one in spec["volumes"]]
        return _encoder.encode((namespace, meta.get("labels"), meta.get("annotations"), plain))
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError):
        return None
