"""A test whose external program is missing is skipped with a message, and fails with CI set."""

from collections import Counter

import pytest

from tests import parts


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(parts, "FOLDERS", {})
    monkeypatch.setattr(parts, "skipped", Counter())


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize("value", ["", "false", "0"])
def test_without_ci_the_test_is_skipped_and_counted(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", value)

    with pytest.raises(pytest.skip.Exception, match="apt-get install postgresql"):
        parts.require("postgres")

    assert parts.skipped == {"postgres": 1}


@pytest.mark.usefixtures("nothing_installed")
def test_in_ci_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")

    with pytest.raises(pytest.fail.Exception, match="chromium is not installed"):
        parts.require("chromium")
