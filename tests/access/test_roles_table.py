"""What each role may do, and that nothing else is allowed."""

import pytest

from hetsched.access.roles import MAY, Action, Role, actions_of


@pytest.mark.parametrize(
    ("role", "actions"),
    [
        ("viewer", {"view"}),
        ("submitter", {"view", "submit"}),
        ("operator", {"view", "submit", "operate"}),
        ("policy-admin", {"view", "edit-policy"}),
        ("agent", {"report"}),
    ],
)
def test_role(role: str, actions: set[str]) -> None:
    assert actions_of([role]) == actions


def test_table_is_complete() -> None:
    assert set(MAY) == set(Role)


def test_no_role_reaches_admin() -> None:
    assert Action.ADMIN not in actions_of(list(Role))


def test_other_groups_add_nothing() -> None:
    assert actions_of(["wheel", "admin", "superuser", ""]) == set()
