"""Server errors: exit code 3 if unreachable or the token is rejected, 2 for a rejected request, with its text."""

from pathlib import Path

import httpx
import pytest

from hetsched.cli.client import Client
from hetsched.contracts.errors import InputError
from tests.unit.cli.answering import Server
from tests.unit.cli.calling import run

NODES = "/api/v1/nodes/"


def test_unreachable_is_3(server: Server) -> None:
    server.answers("GET", NODES, httpx.ConnectError("refused"))
    result = run("get", "nodes")
    assert result.exit_code == 3
    assert result.stderr.startswith("error [ServerUnreachable] http://127.0.0.1:8000: refused")
    assert len(server.asked) == 3


@pytest.mark.parametrize(("status", "code"), [(401, "NotAuthenticated"), (403, "PermissionDenied")])
def test_rejected_token_exits_with_3(server: Server, status: int, code: str) -> None:
    server.refuses("GET", NODES, status, code, "no", requestId="r-1")
    result = run("get", "nodes")
    assert result.exit_code == 3
    assert f"error [{code}]" in result.stderr
    assert "HETSCHED_TOKEN" in result.stderr


def test_missing_token_error_names_the_variable(server: Server) -> None:
    hint = "Send `Authorization: Bearer TOKEN`"
    server.refuses("GET", NODES, 401, "NotAuthenticated", "no", hint=hint)
    result = run("get", "nodes")
    assert "Set HETSCHED_TOKEN, or pass --token" in result.stderr
    assert "Authorization" not in result.stderr


def test_server_error_exits_with_3_and_the_request_id(server: Server) -> None:
    server.refuses("GET", NODES, 500, "InternalError", "it failed", requestId="r-9")
    result = run("get", "nodes")
    assert result.exit_code == 3
    assert "r-9" in result.stderr


def test_response_without_a_problem_document_shows_its_status(server: Server) -> None:
    server.answers("GET", NODES, b"<html>", status=502)
    result = run("get", "nodes")
    assert result.exit_code == 3
    assert "error [Http502]" in result.stderr


def test_rejected_request_exits_with_2_and_shows_place_and_hint(server: Server) -> None:
    server.refuses("GET", NODES, 400, "ClusterAmbiguous", "there are several", place="cluster", hint="Name one: a, b")
    result = run("get", "nodes")
    assert result.exit_code == 2
    assert result.stderr == "error [ClusterAmbiguous] cluster: there are several\n  Name one: a, b\n"


def test_every_wrong_field_of_a_refused_request_is_printed(server: Server) -> None:
    errors = [{"code": "NameInvalid", "detail": "is wrong", "place": place, "hint": "Change it"} for place in "ab"]
    server.refuses("GET", NODES, 400, "NameInvalid", "is wrong", place="a", hint="Change it", errors=errors)
    assert run("get", "nodes").stderr == "".join(
        f"error [NameInvalid] {place}: is wrong\n  Change it\n" for place in "ab"
    )


def test_redirect_is_not_followed(server: Server) -> None:
    server.answers("GET", NODES, b"", status=302, Location="https://elsewhere.example/")
    assert run("get", "nodes", "--token", "hs_x").exit_code == 3
    assert [request.url.host for request in server.asked] == ["127.0.0.1"]


def test_server_and_token_are_read_from_the_environment(server: Server) -> None:
    server.answers("GET", NODES, {"items": [], "next": None})
    env = {"HETSCHED_SERVER": "https://fleet.example:8443", "HETSCHED_TOKEN": "hs_env"}
    assert run("get", "nodes", env=env).exit_code == 0
    assert server.asked[0].url.host == "fleet.example"
    assert server.asked[0].headers["Authorization"] == "Bearer hs_env"


@pytest.mark.parametrize("address", ["", "host", "ftp://host", "http://", "http://u:p@host", "http://host:99999"])
def test_invalid_server_address_is_rejected(address: str) -> None:
    with pytest.raises(InputError) as caught:
        Client(address)
    assert caught.value.code == "ServerUrlInvalid"


def test_non_ascii_token_is_rejected(tmp_path: Path) -> None:
    result = run("get", "nodes", "--token", "hs_\u00e9")
    assert result.exit_code == 2
    assert "TokenInvalid" in result.stderr
    assert "with an unexpired token from `hetsched token create`" in result.stderr
    assert "\u00e9" not in result.stderr
