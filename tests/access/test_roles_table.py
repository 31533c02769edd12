"""The permissions of each role, and nothing else."""

from typing import Any

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


def test_no_role_has_the_admin_action() -> None:
    assert Action.ADMIN not in actions_of(list(Role))


def test_unknown_groups_have_no_actions() -> None:
    assert actions_of(["wheel", "admin", "superuser", ""]) == set()


def test_documented_table_equals_the_code(settings: Any) -> None:
    rows = [f"| role | {' | '.join(Action)} |", f"|{'---|' * (len(Action) + 1)}"]
    for role in Role:
        cells = ("yes" if action in MAY[role] else "" for action in Action)
        rows.append(f"| `{role}` |{''.join(f' {cell} |'.replace('  ', ' ') for cell in cells)}")
    text = (settings.BASE_DIR / "docs" / "how-to" / "accounts.md").read_text()
    shown = text.partition("<!-- roles: made from hetsched/access/roles.py -->\n")[2].partition("<!-- end")[0]
    assert shown.splitlines() == rows
