"""Permission by action: a REST view declares the action that each method needs.

Example: `actions = {"GET": Action.VIEW, "POST": Action.SUBMIT}` on the view. HEAD needs the action of GET, and OPTIONS
the action of any listed method. A method that is not listed is denied to everyone. `public = True` allows everyone to
use the view.
"""

from __future__ import annotations

from typing import Any

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from hetsched.contracts.message import Message

from .roles import Action
from .subject import subject_of


class RolePermission(BasePermission):
    """Permission class that denies by default and checks the table of roles."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if getattr(view, "public", False):
            return True
        needed: dict[str, Action] = getattr(view, "actions", {})
        subject = subject_of(request)
        if request.method == "OPTIONS":
            return any(subject.may(action) for action in needed.values())
        action = needed.get("GET" if request.method == "HEAD" else str(request.method))
        if action is None or subject.may(action):
            return action is not None
        if subject.role:
            template = "the request needs the right {action}, which the role {role} does not have"
            self.message = Message(template, action=action.value, role=subject.role)
        else:
            self.message = Message("the request needs the right {action}; the caller has no role", action=action.value)
        return False
