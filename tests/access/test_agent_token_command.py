"""`hetsched token create --role agent` requires a node and prints the binding of the token."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hetsched.access.models import Token
from hetsched.cli.output import OutputFormat
from hetsched.cli.server.token import create
from hetsched.contracts.errors import InputError
from hetsched.inventory.actions import create_cluster
from hetsched.journal.audit import SYSTEM

pytestmark = pytest.mark.django_db


def test_agent_token_is_bound_to_the_named_node(capsys: pytest.CaptureFixture[str]) -> None:
    create_cluster(name="lab", actor=SYSTEM)
    create(role="agent", cluster="lab", node="gpu-1", output=OutputFormat.JSON)
    created = json.loads(capsys.readouterr().out)
    assert (created["cluster"], created["node"], created["name"]) == ("lab", "gpu-1", "gpu-1")
    assert Token.objects.get().node == "gpu-1"


def test_reports_a_missing_cluster() -> None:
    with pytest.raises(InputError) as caught:
        create(role="agent", cluster="nope", node="gpu-1")
    assert (caught.value.code, caught.value.place) == ("ClusterUnknown", "--cluster")
    assert not Token.objects.exists()


def test_agent_token_requires_a_node() -> None:
    with pytest.raises(InputError) as caught:
        create(role="agent")
    assert caught.value.code == "NodeInvalid"


def test_reports_a_wrong_quota_as_typed() -> None:
    with pytest.raises(InputError) as caught:
        create(role="submitter", quota=["cpu=many"])
    assert (caught.value.code, caught.value.place) == ("QuotaInvalid", "--quota cpu")
    assert "--quota pods=20" in caught.value.hint


def test_token_requires_the_servers_key(settings: Any) -> None:
    settings.SECRET_KEY_GIVEN = settings.DEBUG = settings.EMBEDDED = False
    with pytest.raises(InputError) as caught:
        create(role="viewer")
    assert caught.value.code == "SecretKeyMissing"
    assert not Token.objects.exists()
