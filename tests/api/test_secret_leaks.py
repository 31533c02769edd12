"""Twelve secrets are entered or created in every possible way; none appears outside its store.

Searched: every text of the database, every log record down to debug (with tracebacks, also of tasks), messages to the
broker and to sockets, responses and error pages, and metrics.
"""

from __future__ import annotations

import io
import logging
import logging.config
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.db import OperationalError
from django.test import Client

from hetsched.access.models import BrowserSession, Token
from hetsched.journal.models import OutboxEvent
from hetsched.project import logs
from hetsched.project.celery import ping
from tests.unit.adapters.kubeconfigs import kubeconfig
from web.api.policies import plugins

from .conftest import POD, Api

CANARY = {
    "password": "canary-Password-correct-1",
    "wrong password": "canary-Password-wrong-2",
    "old session": "canarysession3canarysession3cana",
    "csrf": "canarycsrf4canarycsrf4canarycsrf",
    "kubeconfig": "canary-of-the-kubeconfig-5",
    "unknown token": "hs_" + "ca" * 32,
    "signed token": "eyJhbGciOiJub25lIn0.Y2FuYXJ5LTctY2FuYXJ5.canary7canary7",
    "secret key": "canary-secret-key-8-canary-secret-key-8-canary",
    "metrics token": "canary-metrics-9-canary-metrics",
    "database": "canary-database-10",
}


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """Return the formatted log output of the product, down to debug."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    config = logs.logging_config("json", "DEBUG")
    logging.config.dictConfig(config)
    stream = io.StringIO()
    handler = root.handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


def texts_of_the_database() -> dict[str, str]:
    """Return the texts in all columns of all tables."""
    found: dict[str, str] = {}
    for model in apps.get_models(include_auto_created=True):
        for row in model.objects.all().values():
            for name, value in row.items():
                place = f"{model._meta.label}.{name}"
                found[place] = f"{found.get(place, '')}\n{value}"
    return found


def test_no_secret_is_found_outside_its_store(
    api: Callable[..., Api], person: Callable[..., User], cluster: Any, settings: Any, written: io.StringIO,
    monkeypatch: pytest.MonkeyPatch, local_messages: list[tuple[str, list[int]]],
) -> None:  # fmt: skip
    settings.SECRET_KEY_GIVEN, settings.SECRET_KEY = True, CANARY["secret key"]
    settings.HETSCHED_METRICS_TOKEN = CANARY["metrics token"]
    monkeypatch.setattr(logs, "_own", set())
    logs.hide(CANARY["secret key"], CANARY["metrics token"])  # as in the settings
    answers: list[bytes] = []

    def recorded(answer: Any) -> Any:
        answers.append(answer.content + str(dict(answer.items())).encode())
        return answer

    # Users: a valid password, an invalid one, forged cookies.
    ada = person("ada", "operator")
    ada.set_password(CANARY["password"])
    ada.save()
    browser = Client(raise_request_exception=False)
    browser.cookies["hetsched"], browser.cookies["csrftoken"] = CANARY["old session"], CANARY["csrf"]
    for password in (CANARY["wrong password"], CANARY["password"]):
        recorded(browser.post("/login/", {"username": "ada", "password": password}))
    cookie = browser.cookies["hetsched"].value
    recorded(browser.get("/api/v1/sessions/"))
    # Programs: a valid token, and two invalid ones.
    operator = api("operator")
    plaintext = operator.client.defaults["HTTP_AUTHORIZATION"].removeprefix("Bearer ")
    for name in ("unknown token", "signed token", "metrics token"):
        stranger = Api(CANARY[name])
        for address in ("nodes/", "/metrics", f"nodes/{CANARY[name]}/"):
            recorded(stranger("GET", address))
        recorded(stranger("POST", "agent/reports/?cluster=lab", {}))
    # A cluster with a credential, work on it, an export, a webhook.
    credential = kubeconfig(user={"token": CANARY["kubeconfig"]})
    live = {"name": "live", "kind": "kubernetes", "kubeconfig": credential, "namespaces": ["team"], "reason": "x"}
    recorded(operator("POST", "clusters/", live, status=201))
    recorded(operator("POST", "clusters/", {**live, "kubeconfig": {**credential, "clusters": []}}))
    recorded(operator("POST", "workloads/?cluster=lab", POD, kind="application/yaml", status=202))
    for address in ("clusters/live/", "clusters/lab/export/", "audit/", "workloads/"):
        recorded(operator("GET", address))

    # Errors in a view and in a task, with a secret in their messages.
    def broken(*_: Any, **__: Any) -> Any:
        address = f"postgres://hetsched:{CANARY['database']}@db/hetsched"
        raise OperationalError(f"cannot reach {address} with Bearer {CANARY['metrics token']} and {plaintext}")

    monkeypatch.setattr(plugins, "registry", broken)
    failed = recorded(operator("GET", "plugins/"))
    assert failed.status_code in (500, 503)
    try:
        broken()
    except OperationalError:
        logging.getLogger("celery.app.trace").exception("Task %s raised", ping.name)
    recorded(Client(REMOTE_ADDR="127.0.0.1").get("/metrics"))

    secrets = {**CANARY, "token": plaintext, "session": cookie}
    assert len(secrets) == 12
    places = {
        "logs": written.getvalue(),
        "answers": b"\n".join(answers).decode(errors="replace"),
        "sockets": "\n".join(str(event.data) for event in OutboxEvent.objects.all()),
        "broker": str(local_messages),
        **texts_of_the_database(),
    }
    assert "cannot reach" in places["logs"]  # the traceback was written
    own = {"answers": {"session", "old session", "csrf"}}  # a browser gets its own cookies; no other client does
    for place, text in places.items():
        for name, secret in secrets.items():
            if name in own.get(place, ()):
                continue
            assert secret not in text, (name, place, _around(text, secret))
    assert Token.objects.exists()
    assert BrowserSession.objects.exists()


def _around(text: str, secret: str) -> str:
    at = text.index(secret)
    return re.sub(r"\s+", " ", text[max(at - 200, 0) : at + 60])
