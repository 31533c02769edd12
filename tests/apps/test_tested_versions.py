"""The test of a connection warns about versions of Kubernetes that the matrix does not test."""

from __future__ import annotations

import json

import pytest

from hetsched.inventory import connection_check
from hetsched.inventory.actions import create_cluster
from hetsched.inventory.connection_check import TESTED_MINORS, Check, check_cluster, check_version
from hetsched.inventory.models import ClusterKind, Connection
from hetsched.journal.audit import SYSTEM
from tests.kube import control_plane


def test_tested_versions_are_those_of_the_matrix() -> None:
    versions = (control_plane.VERSION, *control_plane.OTHERS)
    assert {version.rpartition(".")[0] for version in versions} == {f"1.{minor}" for minor in TESTED_MINORS}


@pytest.mark.parametrize(
    "version", ["v1.34.0", "v1.37.2", "v1.36.3-gke.1500", "v1.35.4+k3s1", "1.37", "", "v1", "main"]
)
def test_tested_and_unknown_versions_have_no_warning(version: str) -> None:
    assert list(check_version(version)) == []


@pytest.mark.parametrize(
    ("version", "shown"),
    [
        ("v1.33.9", "1.33"),
        ("v1.38.0-alpha.1", "1.38"),
        ("v1.3", "1.3"),
        ("v1.345.0", "1.345"),
        ("v2.37.0", "2.37"),
    ],
)
def test_untested_version_has_a_warning_with_the_tested_ones(version: str, shown: str) -> None:
    (check,) = check_version(version)
    text = f"hetsched is not tested with Kubernetes {shown}: use a version from 1.34 to 1.37"
    assert (check.ok, str(check.detail)) == (True, text)


class OldServer:
    """The responses of an API server of Kubernetes 1.33."""

    def get(self, path: str) -> bytes:
        assert path == "/version"
        return json.dumps({"major": "1", "minor": "33", "gitVersion": "v1.33.9"}).encode()


@pytest.mark.django_db
def test_test_of_a_cluster_contains_the_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = create_cluster(name="old", kind=ClusterKind.KUBERNETES, actor=SYSTEM)
    Connection.objects.create(cluster=cluster)
    monkeypatch.setattr(connection_check, "api_of", lambda _: OldServer())
    monkeypatch.setattr(connection_check, "check_identity", lambda *_: "uid")
    monkeypatch.setattr(connection_check, "_rights", lambda _: iter(()))
    checks: list[Check] = check_cluster(cluster)
    assert [check.check for check in checks][:3] == ["API server", "identity", "Kubernetes version"]
