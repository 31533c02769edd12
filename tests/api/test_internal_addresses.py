"""Internal addresses and hostile kubeconfigs over REST cause no lookup, call, process or file access."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hetsched.inventory.models import Connection
from hetsched.placement.models import Webhook, Workload
from tests.unit.adapters.hostile_addresses import NAMES, SPELLINGS
from tests.unit.adapters.kubeconfigs import kubeconfig
from tests.unit.adapters.test_hostile_kubeconfigs import REFUSED

from .conftest import POD, Api

_STARTS = {"os.exec", "os.fork", "os.posix_spawn", "os.system", "subprocess.Popen", "socket.connect"}
_listening: list[list[str]] = []


def _record_event(event: str, arguments: Any) -> None:
    if not _listening:
        return
    if event in _STARTS or (event == "open" and str(arguments[0]).startswith(("/etc/", "/tmp/pwned", "/run/docker"))):
        _listening[-1].append(f"{event} {arguments!r}"[:200])


sys.addaudithook(_record_event)  # for the life of the process; it records only inside the fixture


@pytest.fixture
def acts() -> Iterator[list[str]]:
    """Return the actions of this process on the machine and on the network."""
    recorded: list[str] = []
    _listening.append(recorded)
    yield recorded
    _listening.pop()


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the looked-up names; none is known."""
    asked: list[str] = []

    def resolve(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return asked


@pytest.fixture
def submitter(api: Callable[..., Api], settings: Any) -> Api:
    settings.SECRET_KEY_GIVEN = True
    settings.HETSCHED_CALLBACK_HOSTS = sorted(NAMES)
    return api("submitter")


def test_corpora_have_the_required_size() -> None:
    assert len(set(SPELLINGS)) >= 40
    assert len(REFUSED) >= 25


def test_no_hostile_address_becomes_a_webhook(submitter: Api, looked_up: list[str], acts: list[str]) -> None:
    for url in SPELLINGS:
        body = {"name": "x", "url": url, "reason": "x"}
        problem = submitter("POST", "webhooks/", body, status=400).json()
        assert problem["code"] in ("CallbackNotAllowed", "CallbackUrlInvalid"), url
        assert "secret" not in problem["detail"]
    assert not Webhook.objects.exists()
    assert (looked_up, acts) == ([], [])


def test_submission_with_a_hostile_address_is_rejected(
    submitter: Api, cluster: Any, looked_up: list[str], acts: list[str]
) -> None:
    for url in filter(None, SPELLINGS):
        problem = submitter("POST", "workloads/", {"manifest": POD, "callbackUrl": url}, status=400).json()
        assert problem["code"] in ("CallbackNotAllowed", "CallbackUrlInvalid"), url
        assert problem["place"] == "callbackUrl"
    assert not Workload.objects.exists()
    assert (looked_up, acts) == ([], [])


def test_no_hostile_kubeconfig_starts_opens_or_calls_anything(
    operator: Api, policies: None, looked_up: list[str], acts: list[str]
) -> None:
    for number, (changed, field) in enumerate(REFUSED):
        body = {"name": f"c{number}", "kind": "kubernetes", "kubeconfig": kubeconfig(**changed), "reason": "x"}
        problem = operator("POST", "clusters/", body, status=400).json()
        assert problem["code"] in ("KubeconfigRefused", "KubeconfigMalformed"), field
        assert problem["place"].endswith(field)
    assert not Connection.objects.exists()
    assert (looked_up, acts) == ([], [])
