"""Rights of an owner whose work runs later, without a request.

An owner is the stable identity of a `Subject` (`user:1`, `token:…`). Its current rights apply: a token that was revoked
or expired, a closed account, and an account that lost its role receive nothing any more.
"""

from __future__ import annotations

from django.contrib.auth import get_user_model
from django.utils import timezone

from .models import Token
from .roles import Action
from .subject import Subject


def subject_of_owner(owner: str) -> Subject | None:
    """Return the current subject of a stable identity; None if it no longer exists."""
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
    """Return whether an owner may currently see the events of a namespace; "" selects events without a namespace.

    Work without an owner belongs to hetsched itself. Work of `several` namespaces is visible only to owners who see
    all namespaces.
    """
    if not owner:
        return True
    subject = subject_of_owner(owner)
    if subject is None or not subject.may(Action.VIEW):
        return False
    if several:
        return subject.namespaces is None
    return not namespace or subject.may_in(namespace)
