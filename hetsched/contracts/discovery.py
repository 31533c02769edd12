"""What discovery found of a live cluster the last time it looked.

Rule: `writes` false means that it only looked, and `reason` says why. Lists are cut at `MOST_TOLD`; counts are whole.
"""

from __future__ import annotations

import msgspec

MOST_TOLD = 100


class Kept(msgspec.Struct, frozen=True, rename="camel"):
    """Something about a node that somebody else says otherwise, and that was therefore left to them.

    `theirs` is what stands there and `by` who wrote it, where the API server tells; `ours` is what we would say.
    """

    node: str
    what: str
    theirs: str
    ours: str
    by: str = ""


class Silent(msgspec.Struct, frozen=True, rename="camel"):
    """A node whose agent was heard of last at `since`."""

    node: str
    since: str


class Discovery(msgspec.Struct, frozen=True, rename="camel"):
    """One look at a cluster; `differing` counts what was not as it should be, `written` what was put right."""

    at: str = ""
    writes: bool = False
    reason: str = ""
    missing: tuple[str, ...] = ()
    nodes: int = 0
    reported: int = 0
    differing: int = 0
    written: int = 0
    kept_count: int = 0
    kept: tuple[Kept, ...] = ()
    silent_count: int = 0
    silent: tuple[Silent, ...] = ()
    failures: tuple[str, ...] = ()
