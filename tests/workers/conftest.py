"""Faked here: the broker (tasks run at once, in this process) and the channel layer.

Checked here: tasks from the submission to rows and events. Not tested here: real workers and brokers (tests/system).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import override_settings

from hetsched.placement import snapshot
from hetsched.policies.actions import ensure_builtins
from hetsched.project.celery import app

IN_THIS_PROCESS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> None:
    """Bring the built-in policies in once; a test that empties the database gets them with its first cluster."""
    with django_db_blocker.unblock(), override_settings(CHANNEL_LAYERS=IN_THIS_PROCESS):
        ensure_builtins()


@pytest.fixture(autouse=True)
def eager(settings: Any) -> Iterator[None]:
    """Run tasks where they are sent, and forget every warm copy after the test."""
    settings.CHANNEL_LAYERS = IN_THIS_PROCESS
    app.loader.import_default_modules()
    app.conf.update(task_always_eager=True, task_eager_propagates=True)
    yield
    app.conf.update(task_always_eager=False, task_eager_propagates=False)
    snapshot._warm.clear()
