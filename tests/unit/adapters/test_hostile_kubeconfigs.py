"""A hostile kubeconfig starts no program and opens no file; the rejection names its field."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from hetsched.adapters.kubernetes.connections import kubeconfig as reading
from hetsched.adapters.kubernetes.connections.kubeconfig import Access, one_context, read
from hetsched.contracts.errors import InputError

from .kubeconfigs import certificate, encoded, key_of, kubeconfig

ACTS = {"open", "os.exec", "os.fork", "os.posix_spawn", "os.system", "socket.connect", "subprocess.Popen"}
_listening: list[list[str]] = []


def _record_event(event: str, arguments: Any) -> None:
    if _listening and event in ACTS:
        _listening[-1].append(f"{event} {arguments!r}"[:200])


sys.addaudithook(_record_event)  # for the life of the process; it records only inside the fixture


@pytest.fixture
def acts() -> Iterator[list[str]]:
    """Return the actions of this process on the machine."""
    one_context(read(json.dumps(kubeconfig()).encode()))  # lazily loaded modules are loaded now
    recorded: list[str] = []
    _listening.append(recorded)
    yield recorded
    _listening.pop()


ME = {"client-certificate-data": encoded(certificate("me")[0]), "client-key-data": key_of("me")}
EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/touch", "args": ["/tmp/pwned"]}
USER, CLUSTER = "users.user", "clusters.cluster"
REFUSED = [
    ({"user": {"exec": EXEC}}, f"{USER}.exec"),
    ({"user": {"token": "t", "exec": EXEC}}, f"{USER}.exec"),
    ({"user": {"auth-provider": {"name": "gcp", "config": {"cmd-path": "/bin/sh"}}}}, f"{USER}.auth-provider"),
    ({"user": {"tokenFile": "/etc/shadow"}}, f"{USER}.tokenFile"),
    ({"user": {"client-certificate": "/etc/passwd", "client-key": "/etc/shadow"}}, f"{USER}.client-certificate"),
    ({"user": {**ME, "client-key": "/etc/shadow"}}, f"{USER}.client-key"),
    ({"user": {"username": "admin", "password": "x"}}, f"{USER}.username"),
    ({"user": {"token": "t", "as": "system:admin"}}, f"{USER}.as"),
    ({"user": {"token": "t", "as-groups": ["system:masters"]}}, f"{USER}.as-groups"),
    ({"user": {"token": "t\r\nX-Remote-User: admin"}}, f"{USER}.token"),
    ({"user": {"token": 5}}, f"{USER}.token"),
    ({"user": {}}, USER),
    ({"user": {**ME, "client-key-data": key_of("me", b"secret")}}, f"{USER}.client-key-data"),
    ({"user": {**ME, "client-key-data": key_of("other")}}, f"{USER}.client-key-data"),
    ({"user": {"client-certificate-data": "/etc/passwd", "client-key-data": "x"}}, f"{USER}.client-certificate-data"),
    ({"cluster": {"certificate-authority": "/etc/ssl/key.pem"}}, f"{CLUSTER}.certificate-authority"),
    ({"cluster": {"certificate-authority-data": encoded(b"no PEM")}}, f"{CLUSTER}.certificate-authority-data"),
    ({"cluster": {"certificate-authority-data": "%%%"}}, f"{CLUSTER}.certificate-authority-data"),
    ({"cluster": {"certificate-authority-data": ""}}, f"{CLUSTER}.certificate-authority-data"),
    ({"cluster": {"insecure-skip-tls-verify": True}}, f"{CLUSTER}.insecure-skip-tls-verify"),
    ({"cluster": {"proxy-url": "http://10.0.0.1:3128"}}, f"{CLUSTER}.proxy-url"),
    ({"cluster": {"tls-server-name": "a b"}}, f"{CLUSTER}.tls-server-name"),
    ({"cluster": {"tls-server-name": "host/../x"}}, f"{CLUSTER}.tls-server-name"),
    *(
        ({"cluster": {"server": server}}, f"{CLUSTER}.server")
        for server in (
            "http://api.example.org", "file:///etc/passwd", "unix:///run/docker.sock", "https://", "api.example.org",
            "https://good.example.org@evil.example.org", "https://good.example.org\\@evil.example.org",
            "https://api.example.org:99999", "https://api.example.org:0", "https://api.example.org?x=1",
            "https://api.example.org/../x", "https://api.example.org\nHost: x", "https://[::1", ["https://x"],
        )
    ),
    ({"cluster": {"server": ""}}, f"{CLUSTER}.server"),
    ({"cluster": None, "user": {"token": "t", "unknown-field": "x"}}, f"{USER}.unknown-field"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "field"), REFUSED)
def test_hostile_field_is_rejected_and_named(changed: dict[str, Any], field: str, acts: list[str]) -> None:
    with pytest.raises(InputError) as refusal:
        one_context(kubeconfig(**changed))
    assert refusal.value.code in ("KubeconfigRefused", "KubeconfigMalformed")
    assert refusal.value.place == field
    assert acts == []


BOMB = "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b]\n"
TEXTS = [
    (BOMB, "YamlAliasRefused"),
    ("apiVersion: v1\nkind: Config\nusers: !!python/object/apply:os.system ['touch /tmp/pwned']\n", "YamlTagRefused"),
    ("apiVersion: v1\nkind: Config\nkind: Config\n", "ManifestDuplicateKey"),
    ("apiVersion: v1\nkind: Config\nclusters: " + "[" * 100 + "]" * 100, "ManifestTooDeep"),
    ("apiVersion: v1\nkind: Config\nclusters: [" + "1," * 30_000 + "]", "ManifestTooLarge"),
    ("apiVersion: v1\nkind: Config\nx: " + "y" * (1 << 20), "ManifestTooLarge"),
    ("apiVersion: v1\nkind: Config\n---\napiVersion: v1\nkind: Config\n", "KubeconfigMalformed"),
    ("", "ManifestEmpty"),
    ("- 1\n", "ManifestMalformed"),
    ("\x00", "ManifestMalformed"),
]


@pytest.mark.parametrize(("text", "code"), TEXTS)
def test_hostile_text_is_rejected_before_expansion(text: str, code: str, acts: list[str]) -> None:
    with pytest.raises(InputError) as refusal:
        one_context(read(text.encode()))
    assert refusal.value.code == code
    assert acts == []


SHAPES = [
    [],
    {"contexts": 5},
    {"contexts": [5]},
    {"contexts": [{"name": "lab", "context": []}]},
    {"clusters": {"lab": {}}},
    {"users": [{"name": "me", "user": "exec"}]},
    {"users": []},
    {"clusters": [{"name": "lab"}, {"name": "lab"}]},
    {"current-context": ["lab"]},
    {"current-context": "none"},
]


@pytest.mark.parametrize("shape", SHAPES)
def test_malformed_kubeconfig_is_rejected(shape: Any, acts: list[str]) -> None:
    with pytest.raises(InputError, match="Kubeconfig"):
        one_context({**kubeconfig(), **shape} if isinstance(shape, dict) else shape)
    assert acts == []


def test_only_the_selected_context_is_kept(acts: list[str]) -> None:
    config = kubeconfig(namespace="team", cluster={"extensions": [{"name": "x"}], "insecure-skip-tls-verify": False})
    config["users"].append({"name": "root", "user": {"token": "another"}})
    config["users"].append({"name": "bad", "user": {"exec": EXEC}})  # unknown fields: neither read nor stored
    kept = one_context(config)
    assert kept["users"] == [{"name": "chosen", "user": {"token": "canary-5f2d"}}]
    assert set(kept["clusters"][0]["cluster"]) == {"server", "certificate-authority-data"}
    assert one_context(kept) == kept
    assert acts == []


def test_context_is_selected_by_name() -> None:
    config = kubeconfig()
    config["contexts"].append({"name": "bad", "context": {"cluster": "lab", "user": "bad"}})
    config["users"].append({"name": "bad", "user": {"exec": EXEC}})
    one_context(config, context="lab")
    with pytest.raises(InputError, match="exec"):
        one_context(config, context="bad")
    with pytest.raises(InputError, match="Known: lab, bad"):
        one_context(config, context="none")


def test_client_certificate_has_its_key() -> None:
    access = Access(one_context(kubeconfig(user=ME)))
    assert access.certificate.startswith(b"-----BEGIN CERTIFICATE")
    assert access.key.startswith(b"-----BEGIN PRIVATE KEY")
    assert access.host == "api.example.org:6443"


def test_no_message_and_no_text_shows_a_credential() -> None:
    with pytest.raises(InputError) as refusal:
        one_context(kubeconfig(user={"token": "canary-5f2d\n"}))
    assert "canary" not in f"{refusal.value} {refusal.value!r}"
    assert "canary" not in repr(Access(one_context(kubeconfig())))
    assert "canary" not in repr(reading)


def test_hosts_are_listed_with_their_port() -> None:
    assert reading.host_of("https://API.example.org/k8s/one") == "api.example.org:443"
    assert reading.host_of("https://[2001:db8::1]:6443") == "[2001:db8::1]:6443"
