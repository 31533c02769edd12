"""Result of the last discovery run on a live cluster.

If `writes` is false, the run was read-only and `reason` says why. Lists are truncated to `MOST_LISTED` entries; counts
are complete.
"""

from __future__ import annotations

import msgspec

from ..message import Message

MOST_LISTED = 100


class FieldConflict(msgspec.Struct, frozen=True, rename="camel"):
    """Field of a node that discovery did not change because another writer had set it to a different value.

    `theirs` is the current value and `by` its field manager, if known from the API server. `ours` is the value found by
    discovery.
    """

    node: str
    what: str
    theirs: str
    ours: str
    by: str = ""


class SilentNode(msgspec.Struct, frozen=True, rename="camel"):
    """Node whose agent sent its last message at `since`."""

    node: str
    since: str


class Discovery(msgspec.Struct, frozen=True, rename="camel"):
    """One discovery run on a cluster; `differing` counts the differences found, and `written` the corrected ones."""

    at: str = ""
    writes: bool = False
    reason: Message = Message("")
    missing: tuple[str, ...] = ()
    nodes: int = 0
    reported: int = 0
    differing: int = 0
    written: int = 0
    kept_count: int = 0
    kept: tuple[FieldConflict, ...] = ()
    silent_count: int = 0
    silent: tuple[SilentNode, ...] = ()
    failures: tuple[Message, ...] = ()
