"""Whoever submitted a workload is told how it fares, at an address that the deployment allows, and at no other."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from hetsched.contracts.errors import InputError
from hetsched.placement import callbacks
from hetsched.placement.actions import cancel
from hetsched.placement.models import Workload
from tests.builders import a_pod
from tests.scenes import ALICE, a_cluster, placing, recorded, submitted
from workers import callback, sweep

pytestmark = pytest.mark.django_db


class Receiver:
    """A server that notes what it is told and answers as it is set to."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.status = 204
        self.headers: dict[str, str] = {}
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(receiver.status)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_port}"
        self.url = f"http://{self.host}/done"


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    listening = Receiver()
    thread = threading.Thread(target=listening.server.serve_forever)
    thread.start()
    settings.HETSCHED_CALLBACK_HOSTS = [listening.host]
    yield listening
    listening.server.shutdown()
    thread.join()
    listening.server.server_close()


def _placed(url: str) -> Workload:
    cluster = a_cluster()
    workload = submitted(cluster, a_pod("p"), callback_url=url)
    assert not callbacks.due().exists()
    recorded(cluster, placing(cluster, "n1"))
    return workload


def test_each_state_is_told_once(receiver: Receiver) -> None:
    workload = _placed(receiver.url)
    assert callback.run(workload.pk)
    assert not callback.run(workload.pk)
    cancel(workload, actor=ALICE, reason="enough")
    assert callback.run(workload.pk)
    assert [(told["id"], told["state"]) for told in receiver.heard] == [
        (workload.pk, "placed"), (workload.pk, "cancelled"),
    ]  # fmt: skip


def test_a_refusal_is_tried_again_later_and_given_up_in_the_end(receiver: Receiver) -> None:
    workload = _placed(receiver.url)
    receiver.status = 503
    for attempt in range(1, callbacks.MOST_ATTEMPTS + 1):
        assert not callback.run(workload.pk)
        assert len(receiver.heard) == attempt
        assert not callback.run(workload.pk)  # its time has not come
        assert len(receiver.heard) == attempt
        Workload.objects.update(callback_not_before=None)
    assert not callbacks.due().exists()


def test_the_sweep_finds_what_no_message_asked_for(receiver: Receiver) -> None:
    _placed(receiver.url)
    sweep.run()
    from django.db import connection

    for _, wake, *_rest in list(connection.run_on_commit):
        if getattr(wake, "task", "") == "workers.callback.run":
            wake()
            break
    assert [told["state"] for told in receiver.heard] == ["placed"]


def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    workload = _placed(receiver.url)
    receiver.status, receiver.headers = 307, {"Location": "http://169.254.169.254/latest"}
    assert not callback.run(workload.pk)
    assert len(receiver.heard) == 1


def test_an_address_that_is_allowed_no_longer_is_not_called(receiver: Receiver, settings: Any) -> None:
    workload = _placed(receiver.url)
    settings.HETSCHED_CALLBACK_HOSTS = []
    assert not callback.run(workload.pk)
    assert receiver.heard == []


def test_a_host_that_does_not_answer_is_a_failed_attempt(settings: Any) -> None:
    settings.HETSCHED_CALLBACK_HOSTS = ["127.0.0.1:9"]
    workload = _placed("http://127.0.0.1:9/")
    assert not callback.run(workload.pk)
    workload.refresh_from_db()
    assert workload.callback_attempts == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/",
        "http://ci.example:8080/",
        "http://ci.example.evil.test/",
        "http://evil.test/?ci.example",
        "http://ci.example@evil.test/",
        "http://[::ffff:169.254.169.254]/",
        "http://2852039166/",
        "ftp://ci.example/",
        "file:///etc/passwd",
    ],
)
def test_other_addresses_are_refused_at_the_door(settings: Any, url: str) -> None:
    settings.HETSCHED_CALLBACK_HOSTS = ["ci.example:443", "ci.example:80"]
    with pytest.raises(InputError) as refused:
        submitted(a_cluster(), callback_url=url)
    assert refused.value.code == "CallbackNotAllowed"
    assert not Workload.objects.exists()


@pytest.mark.parametrize("url", ["https://ci.example/done", "https://CI.example:443/done", "http://ci.example/"])
def test_allowed_addresses_are_accepted(settings: Any, url: str) -> None:
    settings.HETSCHED_CALLBACK_HOSTS = ["ci.example"]
    assert submitted(a_cluster(), callback_url=url).callback_url == url
