"""Peers exempt from the connection limit are the same as the peers with trusted forwarded headers."""

from __future__ import annotations

from typing import Any

import pytest
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from hetsched.project.connections import Peers

HOSTS = ("127.0.0.1", "10.1.2.3", "10.2.0.1", "::1", "0:0::1", "fd00::7", "::ffff:10.1.2.3", "unix:/run/x", "", "*")


async def _app(*_: Any) -> None:
    raise AssertionError("no request is made")


@pytest.mark.parametrize(
    ("names", "known"),
    [
        ([], ()),
        (["127.0.0.1", "::1"], ("127.0.0.1", "::1", "0:0::1")),
        (["10.1.0.0/16", "fd00::/8"], ("10.1.2.3", "fd00::7")),
        (["10.1.0.7/16", "unix:/run/x"], ("unix:/run/x",)),
        (["*"], HOSTS),
        (["*", "10.1.2.3"], ("10.1.2.3", "*")),
    ],
)
def test_names_peers_as_uvicorn_does(names: list[str], known: tuple[str, ...]) -> None:
    found = Peers(names)
    assert [host for host in HOSTS if host in found] == [host for host in HOSTS if host in known]
    by_uvicorn = ProxyHeadersMiddleware(_app, trusted_hosts=names).trusted_hosts
    assert [host in found for host in HOSTS] == [host in by_uvicorn for host in HOSTS]
