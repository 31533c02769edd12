"""Objects that a submission creates in a live cluster."""

from __future__ import annotations

from typing import Any

import msgspec

WORKLOAD_LABEL = "hetsched.io/workload"  # label of objects that hetsched creates, and of the pods of their controllers


class ObjectToCreate(msgspec.Struct, frozen=True):
    """One object to create: its kind and resource name, and the document to send."""

    resource: str
    kind: str
    namespace: str
    name: str
    document: dict[str, Any]
