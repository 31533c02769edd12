"""JSON objects in the explanation of a pod's state, shared by the server and the client."""

from __future__ import annotations

from typing import Any

import msgspec

from .decision import NearestFit


class Difference(msgspec.Struct, frozen=True, rename="camel"):
    """A rejection reason with the number of nodes that it applied to in the previous and the latest attempt."""

    plugin: str
    code: str
    message: str
    before: int
    now: int


class Changed(msgspec.Struct, frozen=True, rename="camel"):
    """The difference between an attempt and the one before it.

    `revisions` is the number of cluster revisions between the attempts. `inventory` is true if facts of nodes also
    changed.
    """

    decision: int
    verdicts: tuple[str, str]
    policies: tuple[str, str]
    nodes: tuple[int | None, int | None]
    revisions: int
    inventory: bool
    reasons: tuple[Difference, ...]


class NextStep(msgspec.Struct, frozen=True, rename="camel"):
    """A change to the request with which the pod would be placed now, and the manifest to submit."""

    fit: NearestFit
    manifest: dict[str, Any]


class Member(msgspec.Struct, frozen=True, rename="camel"):
    """One member of a gang."""

    id: int
    pod: str
    state: str
    decision: int | None


class Gang(msgspec.Struct, frozen=True, rename="camel"):
    """A pod's gang: the number of placed or running members, the minimum, and the first rejection by a gang plugin."""

    name: str
    placed: int
    needed: int
    broken_by: str | None
    members: tuple[Member, ...]
