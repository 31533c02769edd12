"""Findings of the CI check of manifests.

A finding is one error or remark about one pod, and its rule is a stable CamelCase word. A refusal by the scheduler
keeps the scheduler's code. Errors fail the check; warnings and notes do not.
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from .decision import Verdict


class Level(enum.StrEnum):
    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Place(msgspec.Struct, frozen=True):
    """Location of a pod: the file, the number of the YAML document (from 1) and the first line of the document."""

    file: str
    document: int
    line: int


class Artefact(msgspec.Struct, frozen=True):
    """Requirements of one image or program: an ISA string, or None if none exists, for each Kubernetes architecture."""

    name: str
    requirements: dict[str, str | None]
    warnings: tuple[str, ...] = ()


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finding; `field` is the path of the field in the pod, `hint` a suggested fix."""

    rule: str
    level: Level
    pod: str
    message: str
    field: str = ""
    hint: str = ""
    verdict: Literal["", "not-now", "never-fits", "misconfigured"] = ""


class Gate(msgspec.Struct, frozen=True):
    """Result of the check; `verdict` is the worst of the verdicts that can fail the check.

    `findings` are grouped by pod in the order of the files; a finding without a pod is about the files. `waiting` lists
    the pods that do not fit now, even if that does not fail the check.
    """

    verdict: Verdict
    summary: str
    findings: tuple[Finding, ...]
    pods: tuple[str, ...]
    places: dict[str, Place]
    waiting: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """The verdict as shown to users, which is not "placed" if some pods do not fit now."""
        return Verdict.NOT_NOW.value if self.verdict is Verdict.PLACED and self.waiting else self.verdict.value

    def of(self, pod: str) -> tuple[Finding, ...]:
        """Return the findings about one pod."""
        return tuple(finding for finding in self.findings if finding.pod == pod)
