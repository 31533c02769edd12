"""Rights of an owner for work that runs later, outside a request.

An owner is the stable identity of a `Subject` (`user:1`, `token:…`). The current rights of the owner apply: an owner
gets no more events after its token was revoked or has expired, its account was closed, or its role was removed.
"""

from __future__ import annotations

from django.contrib.auth import get_user_model
from django.utils import timezone

from .models import Token
from .roles import Action
from .subject import Subject


def subject_of_owner(owner: str) -> Subject | None:
    """Return the current subject of a stable identity, or None if it no longer exists."""
    kind, _, key = owner.partition(":")
    if kind == "token":
        token = Token.objects.select_related("user").filter(pk=key).first()
        if token is None or (token.expiry is not None and token.expiry < timezone.now()):
            return None
        return Subject(token.user, token)
    if kind == "user" and key.isdecimal():
        user = get_user_model().objects.filter(pk=int(key)).first()
        return None if user is None else Subject(user)
    return None


def may_receive(owner: str, namespace: str, *, several: bool = False) -> bool:
    """Return whether an owner may currently see events of a namespace ("" for events without a namespace).

    Without an owner, the work belongs to hetsched itself, and the result is True. If the work spans `several`
    namespaces, only an owner who may see all namespaces may see it.
    """
    if not owner:
        return True
    subject = subject_of_owner(owner)
    if subject is None or not subject.may(Action.VIEW):
        return False
    if several:
        return subject.namespaces is None
    return not namespace or subject.may_in(namespace)
