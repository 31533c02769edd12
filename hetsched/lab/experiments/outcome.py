"""What an experiment comes back with: rows, what was expected of them, and plots.

Rule: `rows` are what this run measured, with the publication's own figure beside each where it gives one. An
expectation is a sentence with the numbers in it and whether it held. `reconstruction` says that the data is ours: made
to agree with every number that the publication gives, because its own data was never published.
"""

from __future__ import annotations

import msgspec


class Row(msgspec.Struct, frozen=True):
    """One measured figure; `published` is null where the publication gives none."""

    policy: str
    case: str
    metric: str
    value: float | None
    published: float | None = None


class Expectation(msgspec.Struct, frozen=True):
    """A sentence about the rows, and whether they bear it out."""

    text: str
    held: bool


class Experiment(msgspec.Struct, frozen=True):
    """One publication's comparison; `charts` are SVG texts of `hetsched.lab.plots` and stay out of the JSON."""

    name: str
    title: str
    source: str
    reconstruction: bool
    rows: tuple[Row, ...]
    expectations: tuple[Expectation, ...]
    notes: tuple[str, ...] = ()
    charts: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        """Tell whether everything that was expected came out."""
        return all(expectation.held for expectation in self.expectations)
