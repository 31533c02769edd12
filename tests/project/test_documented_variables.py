"""Environment variables that the settings read are documented in docs/reference/settings.md."""

import pytest
from django.conf import settings


@pytest.mark.parametrize("name", sorted(name for name in settings.ENV.asked if not name.endswith("_FILE")))
def test_variable(name: str) -> None:
    assert f"`{name}`" in (settings.BASE_DIR / "docs" / "reference" / "settings.md").read_text()
