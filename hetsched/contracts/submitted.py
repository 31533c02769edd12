"""What a submission brings to a live cluster, object by object."""

from __future__ import annotations

from typing import Any

import msgspec

WORKLOAD_LABEL = "hetsched.io/workload"  # on objects that we create, and on the pods that these make


class Wanted(msgspec.Struct, frozen=True):
    """One object to create: its kind, as people and as the API server name it, and what is sent."""

    resource: str
    kind: str
    namespace: str
    name: str
    document: dict[str, Any]
