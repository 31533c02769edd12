"""Result of an experiment: rows, expectations, and plots.

`rows` contains the measurements of this run, each with the published figure if there is one. An expectation is a
sentence with the measured numbers, and whether the numbers confirm it. `reconstruction` means that the input data is
our own: the publication's data is not available, so the input is constructed to agree with every published number.
"""

from __future__ import annotations

import msgspec


class ResultRow(msgspec.Struct, frozen=True):
    """One measured figure; `published` is null if the publication does not contain the figure."""

    policy: str
    case: str
    metric: str
    value: float | None
    published: float | None = None


class ExpectedResult(msgspec.Struct, frozen=True):
    """Sentence about the rows, and whether they confirm it."""

    text: str
    held: bool


class Experiment(msgspec.Struct, frozen=True):
    """Comparison of one publication; `charts` contains SVG texts of `hetsched.lab.plots`, not part of the JSON."""

    name: str
    title: str
    source: str
    reconstruction: bool
    rows: tuple[ResultRow, ...]
    expectations: tuple[ExpectedResult, ...]
    notes: tuple[str, ...] = ()
    charts: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        """Return whether the rows confirm all expectations."""
        return all(expectation.held for expectation in self.expectations)
