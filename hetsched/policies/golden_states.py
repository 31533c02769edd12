"""The stored cluster state of a golden placement that was created from a decision.

If a golden placement that was created from a decision were checked on the current state, it could break immediately,
because nodes and pods have changed since the decision. The cluster state of the decision is therefore stored with the
golden placement, and every policy is checked on that state.
"""

from __future__ import annotations

import zlib
from datetime import datetime
from functools import lru_cache

import msgspec
from django.db.models import Sum

from hetsched.contracts.documents import encode
from hetsched.contracts.errors import InputError
from hetsched.contracts.message import Message, from_parts
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.engine.cluster.state import ClusterState

from .models import AgreedState, GoldenPlacement

MOST_STATES = 50
MOST_BYTES = 8 * 2**20
MOST_BYTES_IN_ALL = 64 * 2**20


class RecordedCluster(msgspec.Struct, frozen=True):
    """A decision, and the cluster as it was when the decision was made."""

    decision: int
    content: ClusterContent


def store_state(row: GoldenPlacement, agreed: RecordedCluster) -> None:
    """Store the state of a golden placement. Raises: InputError `GoldenStateTooLarge` or `GoldensTooMany`."""
    content = zlib.compress(encode(agreed.content))
    others = AgreedState.objects.exclude(golden=row)
    kept = others.aggregate(size=Sum("size"))["size"] or 0
    hint = "Omit the decision to check the golden placement on empty nodes"
    if others.count() >= MOST_STATES:
        message = Message("the maximum of {n} cluster states stored for golden placements is reached", n=MOST_STATES)
        raise InputError("GoldensTooMany", message, place="decision", hint=hint)
    if len(content) > MOST_BYTES or kept + len(content) > MOST_BYTES_IN_ALL:
        message = Message(
            "the cluster state has {n} bytes; the maximum is {m} for one state and {k} for all stored states",
            n=len(content), m=MOST_BYTES, k=MOST_BYTES_IN_ALL,
        )  # fmt: skip
        raise InputError("GoldenStateTooLarge", message, place="decision", hint=hint)
    AgreedState.objects.update_or_create(golden=row, defaults={"content": content, "size": len(content)})


def delete_state(row: GoldenPlacement) -> None:
    """Delete the stored state, so that the golden placement is checked on empty nodes."""
    AgreedState.objects.filter(golden=row).delete()


def state_of(row: GoldenPlacement) -> ClusterState:
    """Return the stored state of a golden placement; fork it before use."""
    return _state_of(row.pk, row.changed_at)


@lru_cache(maxsize=8)
def _state_of(pk: int, changed_at: datetime) -> ClusterState:
    """Read a stored state; `changed_at` is part of the cache key because the content changes with it."""
    content = bytes(AgreedState.objects.values_list("content", flat=True).get(golden_id=pk))
    return ClusterState.of(
        msgspec.json.decode(zlib.decompress(content), type=ClusterContent, dec_hook=from_parts), clocked=True
    )
