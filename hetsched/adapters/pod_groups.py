"""Key that groups pods with equal demands.

Reading a pod's demands takes longer than the rest of event handling, but the pods of one controller have equal demands
and can share the result. Two pods have the same key if `metadata.labels`, `metadata.annotations` and `spec` are equal
except for fields that are never read: the node's name, the commands, environment and mounts (except mount options) of
containers, and the projected token volume that the API server adds to each pod. Names are not part of the key, so a
cache that uses this key must not store anything derived from a name.
Invariant: `PodReader.template` reads none of the omitted fields; a test reads pods with and without them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hetsched.contracts.message import as_text

_INSIDE = frozenset({"args", "command", "env", "envFrom", "volumeMounts"})
_READ_OF_MOUNT = "bindMountOptions"
_TOKEN = frozenset({"name", "projected"})
_encoder = msgspec.json.Encoder(enc_hook=as_text)


def demand_key(pod: dict[str, Any], namespace: str) -> bytes | None:
    """Return a key that is equal for pods of one namespace with equal demands; None if the object is malformed."""
    meta, spec = pod.get("metadata"), pod.get("spec")
    if type(meta) is not dict or type(spec) is not dict:
        return None
    plain = {**spec, "nodeName": bool(spec.get("nodeName"))}
    try:
        for group in ("containers", "initContainers"):
            if spec.get(group):
                plain[group] = [_without_inside(item) for item in spec[group]]
        if spec.get("volumes"):
            plain["volumes"] = [None if volume.keys() <= _TOKEN else volume for volume in spec["volumes"]]
        return _encoder.encode((namespace, meta.get("labels"), meta.get("annotations"), plain))
    except (AttributeError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def _without_inside(container: dict[str, Any]) -> dict[str, Any]:
    if _INSIDE.isdisjoint(container):
        return container  # the decoder of live pods has already skipped these fields
    plain = {name: value for name, value in container.items() if name not in _INSIDE}
    if mounts := [mount for mount in container.get("volumeMounts") or () if _READ_OF_MOUNT in (mount or ())]:
        plain[_READ_OF_MOUNT] = [mount[_READ_OF_MOUNT] for mount in mounts]
    return plain
