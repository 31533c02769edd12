"""Faked here: nothing. Checked: rows, answers and rights. Not tested here: what the actions do."""

from typing import Any

import pytest
from django.contrib.auth.models import Group, User


@pytest.fixture(autouse=True)
def quick_passwords(settings: Any) -> None:
    """Hash passwords once instead of a million times."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def person(db: Any) -> Any:
    """Return a maker of people with the given groups."""

    def make(name: str = "ada", *groups: str, superuser: bool = False) -> User:
        user = User.objects.create_user(name, password="a long enough password")
        user.is_superuser = user.is_staff = superuser
        user.save()
        user.groups.set(Group.objects.filter(name__in=groups))
        return user

    return make
