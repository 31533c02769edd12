"""DNS rebinding: a name that resolves to an outside address for the check and to loopback later is never called inside.

Faked here: the resolver, whose second answer is loopback, and the outside network, which does not respond. Real here: a
server on loopback that counts connections.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.utils import timezone
from kubernetes import client

from hetsched.adapters.collectors.requests import CollectorClient, SourceError
from hetsched.adapters.http.outbound import AllowedHosts
from hetsched.adapters.kubernetes.api import Api, ApiFailure
from hetsched.adapters.oci.wire import ImageUnreadable, get
from hetsched.placement.models import CallbackHost, Delivery
from hetsched.placement.notifications import callbacks
from workers import callback

pytestmark = pytest.mark.django_db

NAME = "rebind.example"
OUTSIDE = "10.9.9.9"


@pytest.fixture
def victim() -> Iterator[tuple[int, list[str]]]:
    """Listen on loopback; yield the port and the received connections."""
    came: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                with suppress(OSError):
                    connection, address = server.accept()
                    came.append(str(address))
                    connection.close()

        serving = threading.Thread(target=serve)
        serving.start()
        yield server.getsockname()[1], came
        over.set()
        serving.join()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the queries to the resolver: its first answer is outside, every later one loopback."""
    names: list[str] = []
    connect = socket.socket.connect

    def resolve(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        address = host if host[0].isdigit() else OUTSIDE if not names else "127.0.0.1"
        if not host[0].isdigit():
            names.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    def reach(end: socket.socket, address: Any) -> None:
        if address[0] == OUTSIDE:
            raise ConnectionRefusedError
        connect(end, address)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket.socket, "connect", reach)
    return names


def _webhook(port: int) -> None:
    now = timezone.now()
    callbacks.build_delivery(f"http://{NAME}:{port}/", "webhook.test", "{}", now).save(force_insert=True)
    assert callback.run(f"{NAME}:{port}") == 0
    assert Delivery.objects.get().code == "HostUnreachable"
    # The next attempt resolves the name again, and is rejected before it connects.
    Delivery.objects.update(not_before=now)
    CallbackHost.objects.update(quiet_until=None)
    callback.run(f"{NAME}:{port}")
    assert Delivery.objects.get().code == "AddressRefused"


def _collected(port: int) -> None:
    collector = CollectorClient(AllowedHosts(plain=frozenset({f"{NAME}:{port}"})))
    for code in ("HostUnreachable", "AddressRefused"):
        with pytest.raises(SourceError) as failed:
            collector.json(f"http://{NAME}:{port}/api")
        assert failed.value.code == code


def _image(port: int) -> None:
    allowed = AllowedHosts(plain=frozenset({f"{NAME}:{port}"}))
    for code in ("RegistryUnreachable", "AddressRefused"):
        with pytest.raises(ImageUnreadable) as failed:
            get(f"http://{NAME}:{port}/v2/", {}, allowed)
        assert failed.value.code == code


def _api(port: int) -> Api:
    return Api(client.Configuration(host=f"http://{NAME}:{port}"))


def _read(port: int) -> None:
    api = _api(port)
    for _ in range(2):
        with pytest.raises(ApiFailure, match="Unreachable"):
            api.get("/version")


def _watched(port: int) -> None:
    api = _api(port)
    for _ in range(2):
        with (
            pytest.raises(ApiFailure, match="Unreachable"),
            api.stream("/api/v1/pods", {"watch": "1"}, quiet_seconds=5),
        ):
            pass


@pytest.mark.parametrize("call", [_webhook, _collected, _image, _read, _watched])
def test_internal_server_gets_no_call(
    call: Callable[[int], None], victim: tuple[int, list[str]], asked: list[str], settings: Any
) -> None:
    port, came = victim
    settings.HETSCHED_CALLBACK_HOSTS = [f"{NAME}:{port}"]
    call(port)
    assert (asked, came) == ([NAME, NAME], [])
