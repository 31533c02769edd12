"""The states of a pod and the permitted transitions between them.

The choices of model fields, the check and the trigger in the database, badges, the REST enumeration and the diagram in
the documentation are derived from one table of transitions. The state of a workload is derived from its pods: *pending*
while a pod is undecided, else the worst verdict, else the state of the least advanced pod. It is finished only when all
its pods are finished.
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
    # An unschedulable pod is scheduled again after relevant events; its verdict may change.
    State.NOT_NOW: frozenset({*_DECIDED, State.PENDING, State.CANCELLED} - {State.NOT_NOW}),
    State.NEVER_FITS: frozenset({*_DECIDED, State.PENDING, State.CANCELLED} - {State.NEVER_FITS}),
    # A misconfigured pod can only be cancelled; if its request is corrected, it is treated as a new pod.
    State.MISCONFIGURED: frozenset({State.CANCELLED}),
    # A rejected binding or a preemption moves the pod back to the queue.
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
# A pod in one of these states keeps its name in its namespace.
LIVE = frozenset(State) - FINISHED - {State.MISCONFIGURED}
# States of unfinished pods.
LISTED = (*sorted(state.value for state in LIVE), State.MISCONFIGURED.value)

# A workload is in the first of these states in which any of its pods is.
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
    """Return the state of a workload with pods in these states."""
    found = set(states)
    return next((state for state in _RANK if state.value in found), State.SUCCEEDED)


def allowed_from(target: State) -> list[str]:
    """Return the states from which a pod may change to `target`."""
    return [state.value for state in State if target in TRANSITIONS[state]]


def pairs() -> list[tuple[str, str]]:
    """Return every permitted transition as a pair (from, to)."""
    return [(source.value, target.value) for source in State for target in sorted(TRANSITIONS[source])]
