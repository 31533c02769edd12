"""Fixtures for tests of the workers.

The broker (tasks run immediately, in this process) and the channel layer are faked. The tests check tasks from the
submission to rows and events, but not real workers and brokers (`tests/system`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hetsched.placement import scheduler_cache
from hetsched.project.celery import app
from tests.builtins import builtin_policies

IN_THIS_PROCESS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}


@pytest.fixture
def builtins(db: None) -> None:
    """Create the built-in policies, for tests that do not use `a_cluster`."""
    builtin_policies()


@pytest.fixture(autouse=True)
def eager(settings: Any) -> Iterator[None]:
    """Run tasks in the sending process, and clear every scheduler cache after the test."""
    settings.CHANNEL_LAYERS = IN_THIS_PROCESS
    app.loader.import_default_modules()
    app.conf.update(task_always_eager=True, task_eager_propagates=True)
    yield
    app.conf.update(task_always_eager=False, task_eager_propagates=False)
    scheduler_cache._caches.clear()
