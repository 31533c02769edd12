"""Fixtures for fuzz tests.

The broker, the channel layer and all outbound calls are faked. The tests check that no input breaks the server.
"""

import pytest

from tests.api.conftest import (  # noqa: F401 - fixtures
    api,
    cluster,
    decided,
    local_messages,
    operator,
    person,
    policies,
)


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Add the operation of a test to its ID, because xdist runs only one of several tests with equal IDs."""
    label = getattr(item, "operation_label", None)
    if label is not None and label not in item.nodeid:
        item._id = item.id.with_params(label)
