"""Names that the settings hold as strings exist, and every task has a queue."""

import os
import subprocess
import sys
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.utils.module_loading import import_string

from hetsched.placement import dispatch
from hetsched.project.celery import app


@pytest.fixture(scope="module", autouse=True)
def load_tasks() -> None:
    app.loader.import_default_modules()


def test_periodic_tasks_exist() -> None:
    assert {entry["task"] for entry in app.conf.beat_schedule.values()} <= set(app.tasks)
    assert {entry["args"][0] for entry in app.conf.beat_schedule.values()} <= set(app.tasks)


@pytest.mark.parametrize(
    ("task", "queue"),
    [
        (dispatch.SCHEDULE, "schedule"),
        (dispatch.BIND, "io"),
        (dispatch.SWEEP, "io"),
        (dispatch.DEMO, "io"),
        (dispatch.CREATE, "io"),
        (dispatch.EVICT, "io"),
    ],
)
def test_queue(task: str, queue: str) -> None:
    assert task in app.tasks
    assert app.amqp.router.route({}, task)["queue"].name == queue


def test_tasks_survive_their_worker() -> None:
    for name, task in app.tasks.items():
        if name.startswith("workers."):
            assert task.acks_late, name
            assert task.reject_on_worker_lost, name
            assert task.ignore_result, name
    assert app.conf.worker_prefetch_multiplier == 1


def test_celery_accepts_only_json() -> None:
    assert app.conf.accept_content == app.conf.result_accept_content == ["json"]


def test_strings_name_something() -> None:
    rest = settings.REST_FRAMEWORK
    for names in (rest["DEFAULT_AUTHENTICATION_CLASSES"], rest["DEFAULT_PERMISSION_CLASSES"], settings.MIDDLEWARE):
        for name in names:
            assert import_string(name)
    assert import_string(rest["EXCEPTION_HANDLER"])
    assert import_string(settings.ASGI_APPLICATION)


def test_every_answer_carries_a_request_id(client: Client) -> None:
    assert len(client.get("/nothing-here").headers["X-Request-ID"]) == 32
    assert client.get("/nothing-here", headers={"x-request-id": "build-4711"}).headers["X-Request-ID"] == "build-4711"


@pytest.mark.parametrize("given", ["short", "a b c d e f", "x" * 65, "<script>alert(1)</script>", "line\\nbreak"])
def test_odd_request_ids_are_replaced(client: Client, given: str) -> None:
    assert client.get("/nothing-here", headers={"x-request-id": given}).headers["X-Request-ID"] != given


def test_pages_may_load_only_from_here(client: Client) -> None:
    policy = client.get("/nothing-here").headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_admin_is_behind_the_login(client: Client, db: Any) -> None:
    answer = client.get("/admin/", follow=True)
    assert answer.redirect_chain[-1][0].startswith("/login/")


def test_setup_excludes_imports_from_garbage_collection() -> None:
    code = "import django, gc; django.setup(); print(gc.isenabled(), gc.get_freeze_count() > 100_000)"
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "hetsched.project.settings"}
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["True", "True"]
