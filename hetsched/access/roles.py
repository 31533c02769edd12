"""Table of the actions that each role may perform.

Views, tasks and sockets check an action, never a role. A superuser may perform every action. Every other user may
perform the actions of all their groups, which are named after the roles. An action that is not in the table is denied.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Action(enum.StrEnum):
    VIEW = "view"
    SUBMIT = "submit"
    OPERATE = "operate"
    EDIT_POLICY = "edit-policy"
    REPORT = "report"
    ADMIN = "admin"


class Role(enum.StrEnum):
    VIEWER = "viewer"
    SUBMITTER = "submitter"
    OPERATOR = "operator"
    POLICY_ADMIN = "policy-admin"
    AGENT = "agent"


MAY: dict[Role, frozenset[Action]] = {
    Role.VIEWER: frozenset({Action.VIEW}),
    Role.SUBMITTER: frozenset({Action.VIEW, Action.SUBMIT}),
    Role.OPERATOR: frozenset({Action.VIEW, Action.SUBMIT, Action.OPERATE}),
    Role.POLICY_ADMIN: frozenset({Action.VIEW, Action.EDIT_POLICY}),
    Role.AGENT: frozenset({Action.REPORT}),
}


def actions_of(names: Iterable[str]) -> frozenset[Action]:
    """Return the union of the actions of these roles; unknown names are ignored."""
    return frozenset().union(*(MAY[Role(name)] for name in names if name in set(Role)))
