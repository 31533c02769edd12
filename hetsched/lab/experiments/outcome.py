"""Result of an experiment: rows, expectations, and plots.

`rows` are the measurements of this run, with the published figure if there is one. An expectation is a sentence with
the measured numbers, and whether it held. `reconstruction` means that the input data is ours: the publication's data is
not available, so the input is constructed to agree with every published number.
"""

from __future__ import annotations

import msgspec


class ResultRow(msgspec.Struct, frozen=True):
    """One measured figure; `published` is null if the publication gives none."""

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
    """Comparison of one publication; `charts` are SVG texts of `hetsched.lab.plots` and are not in the JSON."""

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
        """Return whether all expectations held."""
        return all(expectation.held for expectation in self.expectations)
