"""What somebody may see for whom something is done later, when nobody asks.

Rule: an owner is the stable identity of a `Subject` (`user:1`, `token:…`). Its rights are those it has now: a token
that was revoked or is over, an account that was closed, or one that lost its role, is told nothing any more.
"""

from __future__ import annotations

from django.contrib.auth import get_user_model
from django.utils import timezone

from .models import Token
from .roles import Action
from .subject import Subject


def subject_of_owner(owner: str) -> Subject | None:
    """Return who stands behind a stable identity by now; None where that is nobody any more."""
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


def may_be_told(owner: str, namespace: str, *, several: bool = False) -> bool:
    """Say whether an owner may see, by now, what is told of a namespace, or of nothing that lies in one.

    What has no owner is the product's own. Work of `several` namespaces is for those who see all.
    """
    if not owner:
        return True
    subject = subject_of_owner(owner)
    if subject is None or not subject.may(Action.VIEW):
        return False
    if several:
        return subject.namespaces is None
    return not namespace or subject.may_in(namespace)
