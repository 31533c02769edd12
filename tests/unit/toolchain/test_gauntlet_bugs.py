"""The gauntlet's list matches the source: every text is found exactly once, every named test exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.gauntlet.bugs import BUGS, Bug
from tests.gauntlet.run import seeded

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_line_is_unique_and_its_test_exists(bug: Bug) -> None:
    source = (ROOT / bug.file).read_text()
    compile(seeded(source, bug), bug.file, "exec")
    file, _, name = bug.test.partition("::")
    assert not name or re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_list_has_two_dozen_bugs() -> None:
    assert [bug.name for bug in BUGS] == [f"K{number}" for number in range(1, 25)]
