"""Faked here: nothing. Checked: rows, responses and permissions. Not tested here: the effects of the actions."""

from typing import Any

import pytest

from tests.people import person  # noqa: F401 - a fixture


@pytest.fixture(autouse=True)
def quick_passwords(settings: Any) -> None:
    """Hash passwords once instead of a million times."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
