"""Connections of a user's own kubeconfig: credentials in files, merged files and exec plugins."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from base64 import b64decode, urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest

from hetsched.adapters.exec_credentials.plugin import ExecCredential
from hetsched.adapters.kubernetes.api import Api
from hetsched.adapters.look.user_kubeconfig import kubeconfig_paths, open_api
from hetsched.contracts.errors import InputError

from .api_server import ListServer, serving
from .kubeconfigs import certificate, encoded, key_of, kubeconfig

SECRET = "canary-77aa"
V1 = "client.authentication.k8s.io/v1"


@pytest.fixture
def server() -> Any:
    with serving([]) as listening:
        yield listening


def write(folder: Path, document: dict[str, Any], name: str = "config") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(document))
    return path


def plugin(folder: Path, code: str, name: str = "login") -> Path:
    """Write an exec plugin in Python."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport json, os, sys\n{code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def token_of(server: ListServer, api: Api) -> str:
    """Return the credential that a call of this client sends."""
    api.get("/api/v1/nodes", {"limit": "1"})
    return server.calls[-1].authorization


def answer(version: str = V1, **status: str) -> str:
    document = {"apiVersion": version, "kind": "ExecCredential", "status": status}
    return f"print({json.dumps(document)!r})"


@pytest.mark.parametrize("field", ["token", "tokenFile"])
def test_token_is_read_from_the_field_or_from_a_relative_file(server: ListServer, tmp_path: Path, field: str) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    user = {"token": SECRET} if field == "token" else {"tokenFile": "secret", "token": "older"}
    assert token_of(server, open_api([write(tmp_path, server.kubeconfig(user))])) == f"Bearer {SECRET}"


@pytest.mark.parametrize("version", [V1, f"{V1}beta1"])
def test_exec_plugin_gets_its_arguments_environment_and_cluster(
    server: ListServer, tmp_path: Path, version: str
) -> None:
    """A command with a path starts at the folder of the kubeconfig; arguments are not read by a shell."""
    code = f"""info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
json.dump([sys.argv[1:], os.environ["STAGE"], info, sys.stdin.read()], open({str(tmp_path / "seen")!r}, "w"))
{answer(version, token=SECRET)}"""
    (tmp_path / "bin").mkdir()
    plugin(tmp_path / "bin", code)
    user = {
        "exec": {
            "apiVersion": version, "command": "bin/login", "args": ["$HOME; id", "b c"],
            "env": [{"name": "STAGE", "value": "lab"}], "interactiveMode": "IfAvailable", "provideClusterInfo": True,
        }
    }  # fmt: skip
    assert token_of(server, open_api([write(tmp_path, server.kubeconfig(user))])) == f"Bearer {SECRET}"
    arguments, stage, info, stdin = json.loads((tmp_path / "seen").read_text())
    assert (arguments, stage, stdin) == (["$HOME; id", "b c"], "lab", "")
    assert info == {
        "apiVersion": version,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": server.url}},
    }


def test_exec_plugin_is_found_in_path_and_returns_a_client_certificate(
    server: ListServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = certificate("me")[0].decode()
    key = b64decode(key_of("me")).decode()
    plugin(tmp_path, answer(clientCertificateData=pem, clientKeyData=key), "cloud-login")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    user = {"exec": {"apiVersion": V1, "command": "cloud-login", "interactiveMode": "Never"}}
    config = open_api([write(tmp_path, server.kubeconfig(user))])._configuration
    assert Path(config.cert_file).read_text() == pem
    assert Path(config.key_file).read_text() == key
    assert stat.S_IMODE(Path(config.key_file).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("sys.exit(3)", "ExecPluginFailed"),
        (f"print({SECRET!r})", "ExecCredentialInvalid"),
        (answer(), "ExecCredentialInvalid"),
        (answer("v2", token=SECRET), "ExecCredentialInvalid"),
        (answer(clientCertificateData=SECRET), "ExecCredentialInvalid"),
        (f"print(json.dumps({{'kind': 'Secret', 'apiVersion': {V1!r}, 'status': {{'token': {SECRET!r}}}}}))",
         "ExecCredentialInvalid"),
    ],
)  # fmt: skip
def test_faulty_exec_plugin_is_named_and_its_output_is_not_shown(
    server: ListServer, tmp_path: Path, capfd: pytest.CaptureFixture[str], code: str, expected: str
) -> None:
    path = plugin(tmp_path, code)
    user = {"exec": {"apiVersion": V1, "command": str(path), "interactiveMode": "Never"}}
    with pytest.raises(InputError, match="login") as error:
        open_api([write(tmp_path, server.kubeconfig(user))])
    assert error.value.code == expected
    assert SECRET not in f"{error.value.message}{error.value.hint}{error.value.place}{capfd.readouterr()}"


@pytest.mark.parametrize(
    ("changes", "expected", "said"),
    [
        (
            {"command": "no-such-program", "installHint": "Install it\nfrom the shop"},
            "ExecPluginMissing",
            "from the shop",
        ),
        ({"command": "./no-such-program"}, "ExecPluginMissing", "PATH"),
        ({"apiVersion": f"{V1}alpha1"}, "ExecPluginUnsupported", V1),
        ({"interactiveMode": "Always"}, "ExecPluginInteractive", "terminal"),
        ({"args": "all"}, "KubeconfigMalformed", ""),
    ],
)
def test_unusable_exec_plugin_has_an_error_that_says_what_to_do(
    server: ListServer, tmp_path: Path, changes: dict[str, Any], expected: str, said: str
) -> None:
    user = {"exec": {"apiVersion": V1, "command": "true", **changes}}
    with pytest.raises(InputError) as error:
        open_api([write(tmp_path, server.kubeconfig(user))])
    assert error.value.code == expected
    assert said in error.value.hint


def test_credentials_have_no_text_form() -> None:
    assert SECRET not in f"{ExecCredential(token=SECRET)} {ExecCredential(token=SECRET)!r}"


def test_client_certificate_and_authority_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(certificate("authority")[0])
    (tmp_path / "me.crt").write_bytes(certificate("me")[0])
    (tmp_path / "me.key").write_bytes(b64decode(key_of("me")))
    cluster = {"certificate-authority": "ca.crt", "tls-server-name": "kubernetes"}
    user = {"client-certificate": "me.crt", "client-key-data": key_of("me")}
    document = kubeconfig(cluster=cluster, user=user)
    del document["clusters"][0]["cluster"]["certificate-authority-data"]
    config = open_api([write(tmp_path, document)])._configuration
    assert config.ca_cert_data == certificate("authority")[0].decode()
    assert (Path(config.cert_file).read_bytes(), config.tls_server_name) == (certificate("me")[0], "kubernetes")
    assert (config.verify_ssl, config.api_key) == (True, {})


def test_files_are_merged_and_the_first_entry_of_a_name_is_used(server: ListServer, tmp_path: Path) -> None:
    first, second = server.kubeconfig({"tokenFile": "t"}), server.kubeconfig({"token": "second"})
    first["contexts"] = []
    second["current-context"] = "other"
    second["contexts"].append({"name": "other", "context": {"cluster": "lab", "user": "other"}})
    second["users"].append({"name": "other", "user": {"token": "other"}})
    paths = [write(tmp_path / "a", first), write(tmp_path / "b", second)]
    (tmp_path / "a" / "t").write_text("first")
    assert token_of(server, open_api(paths)) == "Bearer first"
    assert token_of(server, open_api(paths, context="other")) == "Bearer other"


def test_kubeconfig_is_searched_as_by_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError) as error:
        kubeconfig_paths(None, {})
    assert error.value.code == "KubeconfigMissing"
    home, other = write(tmp_path / ".kube", {}), write(tmp_path, {}, "other")
    assert kubeconfig_paths(None, {}) == [home]
    assert kubeconfig_paths(None, {"KUBECONFIG": f"{tmp_path}/absent{os.pathsep}{other}"}) == [other]
    assert kubeconfig_paths(home, {"KUBECONFIG": str(other)}) == [home]


@pytest.mark.parametrize(
    ("cluster", "user", "code"),
    [
        ({"server": "http://api.example.org"}, {"token": SECRET}, "KubeconfigRefused"),
        ({"server": "ftp://x"}, {}, "KubeconfigMalformed"),
        ({"proxy-url": "http://proxy"}, {}, "KubeconfigRefused"),
        ({}, {"username": "me", "password": SECRET}, "KubeconfigRefused"),
        ({}, {"auth-provider": {"name": "gcp"}}, "KubeconfigRefused"),
        ({}, {"auth-provider": {"name": "oidc"}, "exec": {"command": "login"}}, "KubeconfigMalformed"),
        ({}, {"as": "root", "token": SECRET}, "KubeconfigRefused"),
        ({}, {"tokenFile": "absent"}, "FileUnreadable"),
        ({}, {"token": f"{SECRET}\nX: y"}, "KubeconfigMalformed"),
        ({}, {"client-certificate-data": encoded(b"x")}, "KubeconfigMalformed"),
        ({"certificate-authority-data": "%"}, {}, "KubeconfigMalformed"),
    ],
)
def test_unsupported_and_malformed_fields_are_rejected(
    tmp_path: Path, server: ListServer, cluster: dict[str, Any], user: dict[str, Any], code: str
) -> None:
    document = server.kubeconfig(user)
    document["clusters"][0]["cluster"].update(cluster)
    with pytest.raises(InputError) as error:
        open_api([write(tmp_path, document)])
    assert error.value.code == code
    assert error.value.hint
    assert SECRET not in f"{error.value.message}{error.value.hint}{error.value.place}"


@pytest.mark.parametrize(
    ("provider", "plugin"),
    [
        ("gcp", "gke-gcloud-auth-plugin"),
        ("azure", "Azure/kubelogin (kubelogin convert-kubeconfig"),
        ("other", "exec plugin of"),
    ],
)
def test_auth_provider_is_rejected_with_the_plugin_that_replaces_it(
    tmp_path: Path, server: ListServer, provider: str, plugin: str
) -> None:
    user = {"auth-provider": {"name": provider, "config": {"id-token": SECRET}}}
    with pytest.raises(InputError) as error:
        open_api([write(tmp_path, server.kubeconfig(user))])
    assert (error.value.code, error.value.place) == ("KubeconfigRefused", "users.user.auth-provider")
    assert provider in error.value.message
    assert plugin in error.value.hint
    assert SECRET not in str(error.value)


def oidc_user(claims: dict[str, Any] | None, **user: Any) -> dict[str, Any]:
    """Return a user with the auth provider `oidc`, and with an ID token if there are `claims`."""
    parts = [urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({"alg": "none"}, claims)]
    token = {"id-token": ".".join([*parts, SECRET])} if claims is not None else {}
    config = {"idp-issuer-url": "https://id.example.org", "client-id": "lab", "refresh-token": SECRET, **token}
    return {"auth-provider": {"name": "oidc", "config": config}, **user}


def test_unexpired_id_token_is_used_and_the_file_is_not_written(server: ListServer, tmp_path: Path) -> None:
    user = oidc_user({"sub": "me", "exp": time.time() + 60})
    path = write(tmp_path, server.kubeconfig(user))
    before = path.read_bytes()
    assert token_of(server, open_api([path])) == f"Bearer {user['auth-provider']['config']['id-token']}"
    assert path.read_bytes() == before
    path = write(tmp_path, server.kubeconfig(oidc_user({"exp": 0}, token="own")))
    assert token_of(server, open_api([path])) == "Bearer own"


@pytest.mark.parametrize(
    ("claims", "code", "said"),
    [
        (None, "KubeconfigTokenExpired", "there is no ID token"),
        ({"exp": 1_764_400_000}, "KubeconfigTokenExpired", "valid until 2025-11-29T07:06:40Z"),
        ({"exp": -1e300}, "KubeconfigTokenExpired", "valid until 1970-01-01"),
        ({}, "KubeconfigMalformed", "time of its expiry"),
        ({"exp": None}, "KubeconfigMalformed", "time of its expiry"),
        ({"exp": "soon"}, "KubeconfigMalformed", "time of its expiry"),
    ],
)
def test_expired_or_malformed_id_token_is_rejected_with_a_remedy(
    server: ListServer, tmp_path: Path, claims: dict[str, Any] | None, code: str, said: str
) -> None:
    with pytest.raises(InputError, match=said) as error:
        open_api([write(tmp_path, server.kubeconfig(oidc_user(claims)))])
    assert (error.value.code, error.value.place) == (code, "users.user.auth-provider")
    assert "kubectl" in str(error.value.hint)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(("seconds", "is_used"), [(5, False), (60, True), (1e15, True)])
def test_id_token_is_used_until_it_expires(server: ListServer, tmp_path: Path, seconds: float, is_used: bool) -> None:
    path = write(tmp_path, server.kubeconfig(oidc_user({"exp": time.time() + seconds})))
    if is_used:
        open_api([path])
    else:
        with pytest.raises(InputError, match="valid until"):
            open_api([path])


_NESTED = urlsafe_b64encode(b'{"x":' + b"[" * 100_000).decode()


@pytest.mark.parametrize("token", [SECRET, f"a.{SECRET}.b", 7, ["x"], f"a.{_NESTED}.b"])
def test_id_token_of_another_form_is_rejected(server: ListServer, tmp_path: Path, token: Any) -> None:
    user = {"auth-provider": {"name": "oidc", "config": {"id-token": token}}}
    with pytest.raises(InputError) as error:
        open_api([write(tmp_path, server.kubeconfig(user))])
    assert error.value.code == "KubeconfigMalformed"


def test_unknown_context_lists_the_known_ones(tmp_path: Path, server: ListServer) -> None:
    with pytest.raises(InputError) as error:
        open_api([write(tmp_path, server.kubeconfig())], context="prod")
    assert (error.value.code, error.value.hint) == ("KubeconfigContextUnknown", "Use --context with one of: lab")


def test_missing_current_context_is_named(tmp_path: Path, server: ListServer) -> None:
    with pytest.raises(InputError) as error:
        open_api([write(tmp_path, {**server.kubeconfig(), "current-context": ""})])
    assert error.value.message == "the kubeconfig has no current context"
    assert error.value.hint == "Use --context with one of: lab"


@pytest.mark.parametrize("text", ["{apiVersion: v1, kind: Pod}\n", "{apiVersion: v1, kind: Node}\n---\n" * 2])
def test_malformed_kubeconfig_is_named_with_a_hint(tmp_path: Path, text: str) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        open_api([path])
    assert (error.value.code, error.value.place) == ("KubeconfigMalformed", f"--kubeconfig {path}")
    assert "kubectl config view --raw" in str(error.value.hint)
