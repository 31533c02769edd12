"""Golden placements: administrators' expectations of where a pod must be placed under every policy.

An expectation states exactly one of four conditions: one of these nodes, a node with these labels, a node whose native
instruction set covers a requirement, or a rejection with this verdict. The expectation is evaluated on the cluster's
nodes as if they were empty, so the result depends only on the inventory and the policy.
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from ..errors import InputError
from ..message import Message, joined
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
        """Validate the expectation and return it.

        Raises: InputError `GoldenExpectationInvalid` unless exactly one field is set and within the size limits.
        """
        stated = [name for name in ("nodes", "selector", "isa", "verdict") if getattr(self, name)]
        if len(stated) != 1:
            text = "the expectation is empty"
            if stated:
                text = Message("the expectation contains more than one field: {names}", names=joined(", ", stated))
            hint = "Use exactly one of nodes, selector, isa and verdict"
            raise InputError("GoldenExpectationInvalid", text, place="expect", hint=hint)
        if len(self.nodes) > _MOST or len(self.selector) > _MOST or len(self.isa) > 400:
            message = Message("the field contains more than {n} names", n=_MOST)
            raise InputError("GoldenExpectationInvalid", message, place=f"expect.{stated[0]}")
        return self

    @property
    def words(self) -> Message:
        """The expectation as a phrase."""
        if self.verdict:
            return Message("rejected: {detail}", detail=Message(self.verdict))
        if self.isa:
            return Message("a node that runs {isa} natively", isa=self.isa)
        if self.selector:
            labels = joined(", ", [f"{key}={value}" for key, value in sorted(self.selector.items())])
            return Message("a node with {text}", text=labels)
        if len(self.nodes) == 1:
            return Message("on {node}", node=self.nodes[0])
        return Message("on one of {names}", names=joined(", ", self.nodes))

    def __str__(self) -> str:
        return str(self.words)


class GoldenState(enum.StrEnum):
    """State of a golden placement; *unknown* if the result depends on node facts that are unknown."""

    KEPT = "kept"
    BROKEN = "broken"
    UNKNOWN = "unknown"


class GoldenVerdict(msgspec.Struct, frozen=True, rename="camel"):
    """Result of one golden placement under one policy, with expectation and outcome as text."""

    golden: str
    cluster: str
    state: GoldenState
    expected: Message
    got: Message

    @property
    def words(self) -> Message:
        """Expectation and outcome as a sentence."""
        return Message(
            "{golden} (cluster {cluster}): expected {expected}, got {got}",
            golden=self.golden, cluster=self.cluster, expected=self.expected, got=self.got,
        )  # fmt: skip


class GoldenCheck(msgspec.Struct, frozen=True, rename="camel"):
    """Results of all golden placements of a policy under one version, which is 0 for an unsaved policy."""

    policy: str
    version: int
    results: tuple[GoldenVerdict, ...]
    kept: int
    broken: int
    unknown: int

    @staticmethod
    def of(policy: str, version: int, results: tuple[GoldenVerdict, ...]) -> GoldenCheck:
        counts = [sum(verdict.state is state for verdict in results) for state in GoldenState]
        return GoldenCheck(policy, version, results, *counts)


class GoldenPlacementBroken(InputError):
    """A policy does not place pods as their golden placements expect; `broken` lists these golden placements."""

    def __init__(self, name: str, broken: tuple[GoldenVerdict, ...]) -> None:
        shown = [verdict.words for verdict in broken[:5]]
        if len(broken) > 5:
            shown.append(Message("and {n} more", n=len(broken) - 5))
        first = joined("; ", shown)
        message = Message("policy {name} breaks {n} golden placements: {text}", name=name, n=len(broken), text=first)
        if len(broken) == 1:
            message = Message("policy {name} breaks a golden placement: {text}", name=name, text=first)
        super().__init__(
            "GoldenPlacementBroken",
            message,
            place="version",
            hint="Change the policy, or the golden placement if it is out of date",
        )
        self.broken = broken
