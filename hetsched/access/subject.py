"""Subject of a request: a user with a session, or a program with a token, behind one interface.

`may` uses the table of `roles.py`. Tokens may be limited to namespaces; users are not.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, Group

from .models import Token
from .roles import Action, actions_of


class Subject:
    """Subject of one request, or of one rights check of a socket."""

    def __init__(self, user: Any, token: Token | None = None) -> None:
        self.user: AbstractBaseUser | AnonymousUser = user
        self.token = token
        self.actions = _actions(user, token)

    @property
    def name(self) -> str:
        """Return the name for the audit trail."""
        if not self.user.is_authenticated:
            return "anonymous"
        name = self.user.get_username()
        return f"{name}/{self.token.name}" if self.token else name

    @property
    def role(self) -> str:
        """Return the role, or roles, for the audit trail."""
        if self.token:
            return self.token.role
        if getattr(self.user, "is_superuser", False):
            return "superuser"
        return ",".join(sorted(_group_names(self.user)))

    @property
    def owner(self) -> str:
        """Return a stable identity, to which idempotency keys are scoped."""
        return f"token:{self.token.pk}" if self.token else f"user:{self.user.pk}"

    @property
    def namespaces(self) -> frozenset[str] | None:
        """Return the namespaces to which the subject is limited, or None if it is not limited."""
        return frozenset(self.token.namespaces) if self.token and self.token.namespaces else None

    def may(self, action: str) -> bool:
        return action in self.actions

    def may_in(self, namespace: str) -> bool:
        """Return whether the subject's rights include this namespace."""
        return self.namespaces is None or namespace in self.namespaces


def _group_names(user: Any) -> list[str]:
    return list(Group.objects.filter(user=user.pk).values_list("name", flat=True)) if user.pk else []


def _actions(user: Any, token: Token | None) -> frozenset[Action]:
    if not (user.is_authenticated and user.is_active):
        return frozenset()
    groups = token.user_groups if token else None
    own = frozenset(Action) if user.is_superuser else actions_of(_group_names(user) if groups is None else groups)
    return own & actions_of([token.role]) if token else own


def subject_of(request: Any) -> Subject:
    """Return the subject of a Django or REST request, computed once per request."""
    plain = getattr(request, "_request", request)
    found = getattr(plain, "access_subject", None)
    token = getattr(request, "auth", None)
    if found is None or found.user != request.user or found.token != token:
        found = Subject(request.user, token if isinstance(token, Token) else None)
        plain.access_subject = found
    return found
