"""Fixtures for tests of authentication and permissions.

Nothing is faked. The tests check rows, responses and permissions, but not the effects of actions.
"""

from typing import Any

import pytest

from tests.people import person  # noqa: F401 - a fixture


@pytest.fixture(autouse=True)
def quick_passwords(settings: Any) -> None:
    """Hash passwords once instead of a million times."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
