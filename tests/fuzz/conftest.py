"""Faked here: the broker, the channel layer and every outbound call. Checked: that no input breaks the server."""

from tests.api.conftest import (  # noqa: F401 - fixtures
    api,
    cluster,
    decided,
    operator,
    person,
    policies,
    quiet_surroundings,
)
