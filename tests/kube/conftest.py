"""Fixtures for tests on a real API server.

etcd and kube-apiserver are real, and shared by all tests of a run; each test deletes the objects that it created. There
are no kubelets and no controllers. Tests create the Node objects, and pods run if a test sets their status or uses
`kubelet.Kubelet`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from hetsched.adapters.kubernetes.api import Api
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.models import Cluster, ClusterKind, Connection
from hetsched.journal.audit import SYSTEM
from hetsched.placement import dispatch
from tests.builtins import builtin_policies

from .control_plane import ControlPlane
from .feature_gates import enabled
from .foreign_scheduler import kube_scheduler
from .scene import empty_cluster


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    gates = os.environ.get("HETSCHED_TEST_FEATURE_GATES", "").split()
    with ControlPlane(*([enabled(*gates)] if gates else [])) as running:
        yield running


@pytest.fixture
def api(plane: ControlPlane) -> Api:
    """Return an administrator's API client, after deleting all nodes and pods."""
    return empty_cluster(plane)


@pytest.fixture(autouse=True)
def woken(settings: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int | str, str]]:
    """Record wake-ups instead of sending them, and keep live messages in this process."""
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    sent: list[tuple[int | str, str]] = []
    monkeypatch.setattr(dispatch, "wake", lambda row_id, task=dispatch.SCHEDULE: sent.append((row_id, task)))
    return sent


@pytest.fixture
def cluster(db: None) -> Cluster:
    """Return a live cluster that has no informer."""
    builtin_policies()
    made = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=made)
    return made


@pytest.fixture
def foreign(plane: ControlPlane, api: Api) -> Iterator[None]:
    """Run the real kube-scheduler in addition to hetsched."""
    with kube_scheduler(plane):
        yield
