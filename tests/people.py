"""Users of this server with the permissions of their groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, User


@pytest.fixture
def person(db: Any) -> Callable[..., User]:
    """Return a factory of users with the given groups."""

    def make(name: str = "ada", *groups: str, superuser: bool = False) -> User:
        user = User.objects.create_user(name, password="a long enough password")
        user.is_superuser = user.is_staff = superuser
        user.save()
        user.groups.set(Group.objects.filter(name__in=groups))
        return user

    return make
