"""Golden placements: where a pod must be placed under every policy, stated by an administrator.

An expectation states exactly one thing: one of these nodes, a node with these labels, a node whose native instruction
set covers a requirement, or that the pod is refused with this verdict. It is evaluated on the cluster's nodes as if
they were empty, so the result depends on the inventory and the policy alone.
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from ..errors import InputError
from .decision import Verdict

_MOST = 100


class Expectation(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Expectation of a golden placement; exactly one field is set."""

    nodes: tuple[str, ...] = ()
    selector: dict[str, str] = {}
    isa: str = ""
    verdict: Literal["never-fits", "misconfigured"] | None = None

    @property
    def refused(self) -> Verdict | None:
        """The expected verdict if the pod must not be placed."""
        return None if self.verdict is None else Verdict(self.verdict)

    def checked(self) -> Expectation:
        """Return the expectation after checking it.

        Raises: InputError `GoldenExpectationInvalid` unless exactly one field of modest size is set.
        """
        stated = [name for name in ("nodes", "selector", "isa", "verdict") if getattr(self, name)]
        if len(stated) != 1:
            said = f"the expectation contains {' and '.join(stated)}" if stated else "the expectation is empty"
            hint = "Use exactly one of nodes, selector, isa and verdict"
            raise InputError("GoldenExpectationInvalid", said, place="expect", hint=hint)
        if len(self.nodes) > _MOST or len(self.selector) > _MOST or len(self.isa) > 400:
            raise InputError("GoldenExpectationInvalid", f"more than {_MOST} names", place=f"expect.{stated[0]}")
        return self

    def __str__(self) -> str:
        if self.verdict:
            return f"refused: {self.verdict}"
        if self.isa:
            return f"a node that runs {self.isa} natively"
        if self.selector:
            return f"a node with {', '.join(f'{key}={value}' for key, value in sorted(self.selector.items()))}"
        return f"on {self.nodes[0]}" if len(self.nodes) == 1 else f"on one of {', '.join(self.nodes)}"


class GoldenState(enum.StrEnum):
    """State of a golden placement; *unknown*: facts that decide are unknown."""

    KEPT = "kept"
    BROKEN = "broken"
    UNKNOWN = "unknown"


class Judged(msgspec.Struct, frozen=True, rename="camel"):
    """One golden placement under one policy: expectation and result, in words."""

    golden: str
    cluster: str
    state: GoldenState
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.golden} (cluster {self.cluster}): expected {self.expected}, got {self.got}"


class GoldenCheck(msgspec.Struct, frozen=True, rename="camel"):
    """All golden placements of a policy, under one version of it; version 0 is unsaved."""

    policy: str
    version: int
    results: tuple[Judged, ...]
    kept: int
    broken: int
    unknown: int

    @staticmethod
    def of(policy: str, version: int, results: tuple[Judged, ...]) -> GoldenCheck:
        counts = [sum(one.state is state for one in results) for state in GoldenState]
        return GoldenCheck(policy, version, results, *counts)


class GoldenPlacementBroken(InputError):
    """A policy places a golden pod elsewhere than expected; `broken` lists the placements."""

    def __init__(self, name: str, broken: tuple[Judged, ...]) -> None:
        first = "; ".join(str(one) for one in broken[:5]) + (f"; and {len(broken) - 5} more" if len(broken) > 5 else "")
        many = "a golden placement" if len(broken) == 1 else f"{len(broken)} golden placements"
        super().__init__(
            "GoldenPlacementBroken",
            f"policy {name} breaks {many}: {first}",
            place="version",
            hint="Change the policy, or the golden placement if it is out of date",
        )
        self.broken = broken
