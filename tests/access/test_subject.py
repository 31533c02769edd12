"""Permissions of the requesting subject: users by their groups, tokens never beyond their owner."""

from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser

from hetsched.access.roles import Action
from hetsched.access.subject import Subject
from hetsched.access.tokens import create_token

pytestmark = pytest.mark.django_db


def test_anonymous_has_no_permission() -> None:
    anonymous = Subject(AnonymousUser())
    assert not anonymous.actions
    assert anonymous.name == "anonymous"


def test_permissions_of_groups_are_combined(person: Any) -> None:
    subject = Subject(person("ada", "submitter", "policy-admin"))
    assert subject.actions == {"view", "submit", "edit-policy"}
    assert subject.role == "policy-admin,submitter"


def test_superuser_has_all_permissions(person: Any) -> None:
    assert Subject(person("root", superuser=True)).actions == set(Action)


def test_inactive_user_has_no_permission(person: Any) -> None:
    user = person("ada", superuser=True)
    user.is_active = False
    assert not Subject(user).actions


def test_token_has_only_its_role(person: Any) -> None:
    root = person("root", superuser=True)
    token, _plaintext = create_token(role="viewer", name="dashboard", user=root)
    subject = Subject(root, token)
    assert subject.actions == {"view"}
    assert (subject.name, subject.role) == ("root/dashboard", "viewer")


def test_demoted_owner_demotes_the_token(person: Any) -> None:
    ada = person("ada", "viewer")
    token, _plaintext = create_token(role="operator", name="ci", user=ada)
    assert Subject(ada, token).actions == {"view"}


def test_namespaces_limit_a_token() -> None:
    token, _plaintext = create_token(role="submitter", name="ci", namespaces=["team-a"])
    subject = Subject(token.user, token)
    assert subject.may_in("team-a")
    assert not subject.may_in("team-b")
    assert Subject(token.user).may_in("team-b")


def test_owners_are_kept_apart(person: Any) -> None:
    ada = person("ada", "submitter")
    first, _plaintext = create_token(role="submitter", name="one", user=ada)
    second, _plaintext = create_token(role="submitter", name="two", user=ada)
    assert len({Subject(ada).owner, Subject(ada, first).owner, Subject(ada, second).owner}) == 3
