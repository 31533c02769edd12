"""Result of the last discovery run on a live cluster.

`writes` false means that the run was read-only, and `reason` is why. Lists are cut at `MOST_LISTED`; counts are
complete.
"""

from __future__ import annotations

import msgspec

from ..message import Message

MOST_LISTED = 100


class FieldConflict(msgspec.Struct, frozen=True, rename="camel"):
    """Field of a node that another writer set to a different value, and that discovery therefore did not change.

    `theirs` is the present value and `by` its field manager, if the API server names it; `ours` is the value of
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
    """One discovery run on a cluster; `differing` counts differences that were found, `written` those corrected."""

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
