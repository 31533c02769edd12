"""`hetsched token create --role agent`: it needs the node, and says what the token is bound to."""

from __future__ import annotations

import json

import pytest

from hetsched.access.models import Token
from hetsched.cli.output import OutputFormat
from hetsched.cli.token import create
from hetsched.contracts.errors import InputError

pytestmark = pytest.mark.django_db


def test_it_is_bound_to_the_node_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    create(role="agent", cluster="lab", node="gpu-1", output=OutputFormat.JSON)
    told = json.loads(capsys.readouterr().out)
    assert (told["cluster"], told["node"], told["name"]) == ("lab", "gpu-1", "gpu-1")
    assert Token.objects.get().node == "gpu-1"


def test_without_a_node_there_is_none() -> None:
    with pytest.raises(InputError) as caught:
        create(role="agent")
    assert caught.value.code == "NodeInvalid"
