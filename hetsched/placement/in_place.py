"""The fields of a pod that can change while the pod has a reservation.

A pod row keeps the spec of its decision. A resize, new labels, a toleration, an annotation, another owner or a deletion
with a grace period changes only the request in the pod's reservation, which is computed by `updated_spec`.
`fingerprint` hashes these fields, so that updates of other fields are recognised without reading the request from the
database.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from hetsched.contracts.message import as_text
from hetsched.contracts.objects.workload import PodSpec

_OF_POD = ("labels", "stays", "controller", "controller_uid", "grace_seconds", "terminating")
_OF_SHAPE = ("requests", "nonzero_cpu_millis", "nonzero_memory_bytes", "tolerations")
_encoder = msgspec.json.Encoder(order="sorted", enc_hook=as_text)


def fingerprint(spec: PodSpec) -> str:
    """Return 16 hexadecimal digits that identify the pod's values of the fields that can change."""
    fields = [getattr(spec, name) for name in _OF_POD] + [getattr(spec.shape, name) for name in _OF_SHAPE]
    return blake2b(_encoder.encode(fields), digest_size=8).hexdigest()


def updated_spec(spec: PodSpec, seen: PodSpec) -> PodSpec:
    """Return `spec` with the values of `seen` in the fields that can change."""
    shape = msgspec.structs.replace(spec.shape, **{name: getattr(seen.shape, name) for name in _OF_SHAPE})
    return msgspec.structs.replace(spec, shape=shape, **{name: getattr(seen, name) for name in _OF_POD})
