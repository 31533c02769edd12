"""Digest of a pod object's content, to recognise an update that only binds the pod without a full read.

The digest covers the labels, the owners, the annotations and the spec, without the node and the annotations that a
Binding writes. It excludes the status.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hetsched.adapters.objects import keys

_BY_BINDING = frozenset({keys.ALLOCATION, keys.TOPOLOGY_RESULT})
_NODE = frozenset({"nodeName"})
_NOTHING = msgspec.Raw(b"")


class _PodMeta(msgspec.Struct):
    labels: msgspec.Raw = _NOTHING
    owners: msgspec.Raw = msgspec.field(default=_NOTHING, name="ownerReferences")
    annotations: dict[str, msgspec.Raw] = {}


class _PodObject(msgspec.Struct):
    metadata: _PodMeta
    spec: dict[str, msgspec.Raw]


_decoder = msgspec.json.Decoder(_PodObject)


def content_digest(body: bytes) -> int | None:
    """Return equal numbers for equal content within this process; None for an object that is no pod."""
    try:
        found = _decoder.decode(body)
    except msgspec.DecodeError:
        return None
    meta = found.metadata
    parts = (_without(meta.annotations, _BY_BINDING), _without(found.spec, _NODE))
    return hash((bytes(meta.labels), bytes(meta.owners), *parts))


def _without(fields: Mapping[str, msgspec.Raw], names: frozenset[str]) -> frozenset[tuple[str, bytes]]:
    return frozenset((name, bytes(value)) for name, value in fields.items() if name not in names)
