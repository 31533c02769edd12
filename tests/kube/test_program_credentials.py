"""A connection of the server whose token comes from an allowed program, on a real API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hetsched.adapters.exec_credentials import kept_credential
from hetsched.adapters.kubernetes.api import ApiFailure
from hetsched.adapters.kubernetes.resources import NODES
from hetsched.inventory import connections
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.connection_check import check_cluster
from hetsched.inventory.connections import api_of, connect
from hetsched.inventory.models import ClusterKind
from hetsched.journal.audit import SYSTEM

from .control_plane import ControlPlane

pytestmark = [pytest.mark.needs("etcd", "kube-apiserver"), pytest.mark.django_db]
V1 = "client.authentication.k8s.io/v1"


def test_rejected_token_is_requested_again(
    plane: ControlPlane, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = tmp_path / "credential"

    def log_in(token: str) -> None:
        printed.write_text(json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": {"token": token}}))

    settings.SECRET_KEY_GIVEN = True
    settings.HETSCHED_EXEC_CREDENTIALS = ["/bin/cat"]
    for owner, name in ((connections, "_apis"), (kept_credential, "_kept")):
        monkeypatch.setattr(owner, name, {})
    monkeypatch.setattr(kept_credential, "PAUSE_SECONDS", 0.0)
    user = {"exec": {"apiVersion": V1, "command": "cat", "args": [str(printed)], "interactiveMode": "IfAvailable"}}
    config = {**plane.kubeconfig(), "users": [{"name": "admin", "user": user}]}
    cluster = create_cluster(name="live", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    log_in(plane.token)
    connect(cluster, kubeconfig=config, actor=SYSTEM, reason="test")
    checks = {check.check: check for check in check_cluster(cluster)}
    assert checks["API server"].ok
    assert checks["rights"].ok
    api = api_of(cluster)
    (held,) = kept_credential._kept.values()
    log_in("expired")
    held.reject()
    with pytest.raises(ApiFailure, match="401"):
        api.list_all(NODES)
    log_in(plane.token)
    api.list_all(NODES)
    log_in("expired")
    with api.stream(NODES.path(), {"watch": "1", "timeoutSeconds": "1"}, quiet_seconds=10) as lines:
        assert list(lines) is not None  # the kept token is still sent
