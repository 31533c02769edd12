"""The states of a pod, and the only ways from one to the next.

Rule: one table. Field choices, the database's own check and trigger, badges, the REST enumeration and the diagram in
the documentation are made from it. A workload's state follows from its pods: as long as one is undecided it is
*pending*; else the worst verdict; else the least advanced pod; finished only when all pods are.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from django.utils.translation import gettext_lazy as _


class State(enum.StrEnum):
    PENDING = "pending"
    PLACED = "placed"
    BINDING = "binding"
    BOUND = "bound"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    NOT_NOW = "not-now"
    NEVER_FITS = "never-fits"
    MISCONFIGURED = "misconfigured"
    CANCELLED = "cancelled"


LABELS = {
    State.PENDING: _("pending"),
    State.PLACED: _("placed"),
    State.BINDING: _("binding"),
    State.BOUND: _("bound"),
    State.RUNNING: _("running"),
    State.SUCCEEDED: _("succeeded"),
    State.FAILED: _("failed"),
    State.NOT_NOW: _("not now"),
    State.NEVER_FITS: _("never fits"),
    State.MISCONFIGURED: _("misconfigured"),
    State.CANCELLED: _("cancelled"),
}
CHOICES = [(state.value, label) for state, label in LABELS.items()]

_DECIDED = {State.PLACED, State.NOT_NOW, State.NEVER_FITS, State.MISCONFIGURED}
TRANSITIONS: dict[State, frozenset[State]] = {
    State.PENDING: frozenset({*_DECIDED, State.CANCELLED}),
    # A pod that waits is looked at again when something changed; its verdict may change with it.
    State.NOT_NOW: frozenset({*_DECIDED, State.PENDING, State.CANCELLED} - {State.NOT_NOW}),
    State.NEVER_FITS: frozenset({*_DECIDED, State.PENDING, State.CANCELLED} - {State.NEVER_FITS}),
    # What a pod asks for does not change, so a wrong request is only ever given up.
    State.MISCONFIGURED: frozenset({State.CANCELLED}),
    # A refused binding sends the pod back to the queue, and so does a pod for which it had to make room.
    State.PLACED: frozenset({State.BINDING, State.PENDING, State.SUCCEEDED, State.FAILED, State.CANCELLED}),
    State.BINDING: frozenset({State.BOUND, State.PENDING, State.FAILED, State.CANCELLED}),
    State.BOUND: frozenset({State.RUNNING, State.PENDING, State.SUCCEEDED, State.FAILED, State.CANCELLED}),
    State.RUNNING: frozenset({State.PENDING, State.SUCCEEDED, State.FAILED, State.CANCELLED}),
    State.SUCCEEDED: frozenset(),
    State.FAILED: frozenset({State.PENDING}),
    State.CANCELLED: frozenset(),
}

QUEUED = frozenset({State.PENDING, State.NOT_NOW, State.NEVER_FITS})
UNPLACED = frozenset({State.NOT_NOW, State.NEVER_FITS, State.MISCONFIGURED})
HOLDING = frozenset({State.PLACED, State.BINDING, State.BOUND, State.RUNNING})
FINISHED = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
# A pod in one of these keeps its name in its namespace.
LIVE = frozenset(State) - FINISHED - {State.MISCONFIGURED}
# What the index of pods that are not over has, in its very order: SQLite compares the text of the condition.
LISTED = (*sorted(state.value for state in LIVE), State.MISCONFIGURED.value)

# The first of these that any pod is in is the workload's state.
_RANK = (
    State.PENDING,
    State.MISCONFIGURED,
    State.NEVER_FITS,
    State.NOT_NOW,
    State.PLACED,
    State.BINDING,
    State.BOUND,
    State.RUNNING,
    State.FAILED,
    State.CANCELLED,
    State.SUCCEEDED,
)


def workload_state(states: Iterable[str]) -> State:
    """Return the state of a workload whose pods are in these states."""
    found = set(states)
    return next((state for state in _RANK if state.value in found), State.SUCCEEDED)


def allowed_from(target: State) -> list[str]:
    """Return the states from which a pod may come to `target`."""
    return [state.value for state in State if target in TRANSITIONS[state]]


def pairs() -> list[tuple[str, str]]:
    """Return every allowed (from, to)."""
    return [(source.value, target.value) for source in State for target in sorted(TRANSITIONS[source])]
