"""What a pipeline is told about its manifests before they are merged.

Rule: a finding is one thing that is wrong or worth knowing about one pod; its rule is a stable CamelCase word. What
the scheduler itself refused keeps the scheduler's code. An error stops a merge, a warning and a note do not.
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
    """Where a pod is written: the file, its document (from 1) and the line that document begins at."""

    file: str
    document: int
    line: int


class Artefact(msgspec.Struct, frozen=True):
    """What one image or program needs, by Kubernetes architecture; None: outside what requirements can say."""

    name: str
    requirements: dict[str, str | None]
    warnings: tuple[str, ...] = ()


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing found; `field` is where in the pod it is written, `hint` what would mend it."""

    rule: str
    level: Level
    pod: str
    message: str
    field: str = ""
    hint: str = ""
    verdict: Literal["", "not-now", "never-fits", "misconfigured"] = ""


class Gate(msgspec.Struct, frozen=True):
    """The whole result: `verdict` is the worst that counts, `findings` are by pod in the order of the files."""

    verdict: Verdict
    summary: str
    findings: tuple[Finding, ...]
    pods: tuple[str, ...]
    places: dict[str, Place]

    def of(self, pod: str) -> tuple[Finding, ...]:
        """Return the findings about one pod."""
        return tuple(finding for finding in self.findings if finding.pod == pod)
