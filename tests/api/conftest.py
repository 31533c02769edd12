"""Fixtures for REST tests.

The broker and the channel layer are faked. The tests check responses, headers and rows, but not scheduling decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from django.test import Client

from hetsched.access.tokens import create_token
from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.engine.framework.builtin_policies import BUILTIN
from hetsched.inventory.models import Cluster
from hetsched.journal.audit import SYSTEM
from hetsched.placement import dispatch, scheduler_cache
from hetsched.placement.actions import import_cluster
from hetsched.policies.models import Policy, PolicyRevision
from tests.builders import a_node
from tests.people import person  # noqa: F401 - a fixture
from web.api.monitoring import health

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - {name: main, image: example.com/web, resources: {requests: {cpu: 500m, memory: 1Gi}}}
"""


@pytest.fixture(autouse=True)
def local_messages(settings: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[int]]]:
    """Keep live messages in this process, and record wake-ups instead of sending them."""
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    woken: list[tuple[str, list[int]]] = []

    class Broker:
        """A broker that is always available and accepts every wake-up."""

        transport = SimpleNamespace(driver_type="memory")

        def signature(self, task: str, args: list[int]) -> Broker:
            woken.append((task, args))
            return self

        def apply_async(self, queue: str, ignore_result: bool, retry: bool) -> None:
            pass

        @contextmanager
        def connection_for_write(self) -> Iterator[Broker]:
            yield self

        def ensure_connection(self, **_: Any) -> None:
            pass

    monkeypatch.setattr(dispatch, "current_app", Broker())
    monkeypatch.setattr(health, "current_app", Broker())
    # The next test reuses the IDs and revisions of a rolled-back test.
    monkeypatch.setattr(scheduler_cache, "_caches", {})
    return woken


class Api:
    """A REST client with a token or without one."""

    def __init__(self, token: str = "") -> None:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self.client = Client(headers=headers, raise_request_exception=False)

    def __call__(
        self,
        method: str,
        address: str,
        body: Any = None,
        *,
        kind: str = "application/json",
        status: int | None = None,
        **headers: str,
    ) -> Any:
        """Send a request to a path under /api/v1/, and check the status if one is given."""
        data = (
            body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else msgspec.json.encode(body)
        )
        path = address if address.startswith("/") else f"/api/v1/{address}"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self.client.generic(method, path, b"" if body is None else data, content_type=kind, headers=named)
        assert status is None or answer.status_code == status, answer.content.decode()
        return answer

    def get(self, address: str, **query: Any) -> Any:
        """Return the document at a path."""
        return self.client.get(f"/api/v1/{address}", query).json()

    def tag(self, address: str) -> str:
        """Return the ETag of the document at a path."""
        return str(self.client.get(f"/api/v1/{address}")["ETag"])


@pytest.fixture
def api(db: Any) -> Callable[..., Api]:
    """Return a factory of clients by role; further arguments limit their token to namespaces."""

    def make(role: str = "operator", *namespaces: str) -> Api:
        if role == "anonymous":
            return Api()
        bound = {"cluster": "lab", "node": "n1"} if role == "agent" else {}
        return Api(create_token(role=role, name=f"test-{role}", namespaces=namespaces, **bound)[1])

    return make


@pytest.fixture
def operator(api: Callable[..., Api]) -> Api:
    return api("operator")


@pytest.fixture
def policies(db: Any) -> None:
    """Create the built-in policies, each with one active version."""
    names = Policy.objects.bulk_create([Policy(name=name, active_version=1) for name in BUILTIN])
    PolicyRevision.objects.bulk_create(
        PolicyRevision(policy=policy, version=1, spec=BUILTIN[policy.name], state="active", author="built-in")
        for policy in names
    )


@pytest.fixture
def cluster(policies: None) -> Cluster:
    """Return the cluster `lab` with two nodes of 8 CPUs each, one of them with two GPUs."""
    nodes = (a_node("n1").build(), a_node("n2").gpus(2).build())
    return import_cluster(ClusterContent(nodes=nodes), name="lab", actor=SYSTEM)


@pytest.fixture
def decided(cluster: Cluster, operator: Api) -> str:
    """Return the ID of a workload of two pods, one placed and one that never fits."""
    from workers.schedule import run

    big = POD.replace("web", "big").replace("500m", "900")
    accepted = operator("POST", "workloads/", f"{POD}---\n{big}", kind="application/yaml", status=202)
    run(cluster.pk)
    return str(accepted.json()["id"])
