"""Image lookups at a registry: platforms, recipients of our credentials, and rejected responses.

Real here: a registry on loopback over HTTP.
"""

import base64
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hetsched.adapters.http import outbound
from hetsched.adapters.http.certificates import make_pairs
from hetsched.adapters.oci import documents, wire
from hetsched.adapters.oci.pull_secrets import credential_for
from hetsched.adapters.oci.reference import parse_reference
from hetsched.adapters.oci.registry import ImageLookup, RegistryCredential, look_up
from hetsched.adapters.oci.wire import AllowedHosts, ImageUnreadable
from tests.registry import DOCKER_LIST, MANIFEST, Registry, a_registry, digest_of

US = RegistryCredential("ann", "secret-canary")


@pytest.fixture
def registry() -> Iterator[Registry]:
    with a_registry() as served:
        yield served


def found(registry: Registry, name: str, credential: RegistryCredential | None = None) -> ImageLookup:
    return look_up(parse_reference(name), registry.allowed, credential)


def refusal(registry: Registry, name: str, allowed: AllowedHosts | None = None) -> str:
    with pytest.raises(ImageUnreadable) as refused:
        look_up(parse_reference(name), registry.allowed if allowed is None else allowed)
    assert "script" not in refused.value.message  # texts of a registry are not passed on
    return refused.value.code


@pytest.mark.parametrize("media_type", [None, DOCKER_LIST])
def test_index_has_platforms_and_digest(registry: Registry, media_type: str | None) -> None:
    name = registry.image(
        "app/web:1", "linux/amd64", "linux/arm64/v8", **({"media_type": media_type} if media_type else {})
    )
    offered = found(registry, name)
    assert offered.platforms == ("linux/amd64", "linux/arm64/v8")
    assert found(registry, f"{registry.host}/app/web@{offered.digest}") == offered


def test_platform_of_a_single_manifest_is_read_from_its_configuration(registry: Registry) -> None:
    assert found(registry, registry.single("app:1", "linux/riscv64")).platforms == ("linux/riscv64",)


def test_nested_index_and_entry_without_a_platform_are_read(registry: Registry) -> None:
    registry.image("app:inner", "linux/amd64")
    registry.single("app:alone", "linux/arm64")
    inner, alone = (digest_of(registry.documents[f"/v2/app/manifests/{tag}"][1]) for tag in ("inner", "alone"))
    registry.push("app:1", {"manifests": [{"digest": inner}, {"digest": alone}]}, "index")
    assert found(registry, f"{registry.host}/app:1").platforms == ("linux/amd64", "linux/arm64")


def test_token_is_requested_for_this_repository_only(registry: Registry) -> None:
    name = registry.image("team/app:1", "linux/amd64")
    registry.wants_token = True
    assert found(registry, name).platforms == ("linux/amd64",)
    (asked,) = [path for path, _ in registry.asked if path.startswith("/token")]
    assert asked == "/token?scope=repository%3Ateam%2Fapp%3Apull&service=test"


def test_credentials_are_exchanged_for_a_token(registry: Registry) -> None:
    name = registry.image("app:1", "linux/amd64")
    registry.wants_token, registry.user = True, "ann:secret-canary"
    assert found(registry, name, US).platforms == ("linux/amd64",)
    assert refusal(registry, name) == "RegistryRefused"
    registry.wants_token, registry.wants_basic = False, True
    assert found(registry, name, US).platforms == ("linux/amd64",)
    assert refusal(registry, name) == "RegistryRefused"
    assert "canary" not in repr(US)


def test_redirect_to_another_host_gets_no_credentials(registry: Registry) -> None:
    with a_registry() as other:
        name = registry.single("app:1", "linux/amd64")
        other.documents = dict(registry.documents)
        registry.redirect_blobs_to, registry.wants_token = f"http://{other.host}", True
        allowed = AllowedHosts(plain=frozenset({registry.host, other.host}))
        assert look_up(parse_reference(name), allowed, US).platforms == ("linux/amd64",)
        assert [authorization for _, authorization in other.asked] == [""]
        # The other host is not allowed, so it is not called.
        assert refusal(registry, name) == "AddressRefused"
        assert len(other.asked) == 1


def test_redirects_in_a_circle_end(registry: Registry) -> None:
    name = registry.single("app:1", "linux/amd64")
    registry.redirect_blobs_to = f"http://{registry.host}"
    registry.asked.clear()
    assert refusal(registry, name) == "RedirectRefused"


def test_internal_token_endpoint_is_not_called(registry: Registry) -> None:
    name = registry.image("app:1", "linux/amd64")
    with socket.create_server(("127.0.0.1", 0)) as inside:
        inside.settimeout(0.2)
        registry.wants_token, registry.realm = True, f"https://127.0.0.1:{inside.getsockname()[1]}/token"
        assert refusal(registry, name) == "AddressRefused"
        with pytest.raises(TimeoutError):
            inside.accept()


def test_content_with_another_digest_is_rejected(registry: Registry) -> None:
    name = registry.image("app:1", "linux/amd64")
    wrong = f"{registry.host}/app@sha256:{'0' * 64}"
    registry.documents[f"/v2/app/manifests/sha256:{'0' * 64}"] = registry.documents["/v2/app/manifests/1"]
    assert refusal(registry, wrong) == "ImageMalformed"
    registry.stated_digest = f"sha256:{'0' * 64}"
    assert refusal(registry, name) == "ImageMalformed"
    registry.stated_digest = ""
    single = registry.single("one:1", "linux/amd64")
    for path in [path for path in registry.documents if path.startswith("/v2/one/blobs/")]:
        registry.documents[path] = "x", b'{"os": "linux", "architecture": "arm64"}'
    assert refusal(registry, single) == "ImageMalformed"


def test_too_much_is_not_read(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    name = registry.image("app:1", *(f"linux/a{number}" for number in range(40)))
    registry.documents["/v2/app/manifests/1"] = "x", b" " * (documents.MAX_DOCUMENT_BYTES + 1)
    assert refusal(registry, name) == "DocumentTooLarge"
    entries = [{"digest": digest_of(str(number).encode())} for number in range(documents.MAX_DOCUMENTS + 1)]
    for number, entry in enumerate(entries):
        registry.documents[f"/v2/many/manifests/{entry['digest']}"] = "x", str(number).encode()
    registry.push("many:1", {"manifests": entries}, "index")
    assert refusal(registry, f"{registry.host}/many:1") == "ImageMalformed"


def test_slow_response_ends_at_the_deadline(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    name = registry.image("app:1", *(f"linux/a{number}" for number in range(20)))
    registry.trickles = True
    monkeypatch.setattr(wire, "SECONDS", 0.5)
    assert refusal(registry, name) == "RegistrySlow"


def test_silence_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "QUIET_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        registry = Registry()
        registry.host = f"127.0.0.1:{silent.getsockname()[1]}"
        assert refusal(registry, f"{registry.host}/app:1") == "RegistrySlow"


@pytest.mark.parametrize(
    ("status", "headers", "code", "wait"),
    [
        (404, {}, "ImageNotFound", 0),
        (403, {}, "RegistryRefused", 0),
        (429, {"Retry-After": "120"}, "RegistryBusy", 120),
        (429, {"Retry-After": "soon"}, "RegistryBusy", 0),
        (500, {}, "RegistryFailed", 0),
        (204, {}, "RegistryFailed", 0),
    ],
)
def test_error_response_has_its_code_and_wait(
    registry: Registry, status: int, headers: dict[str, str], code: str, wait: float
) -> None:
    registry.status, registry.headers = status, headers
    with pytest.raises(ImageUnreadable) as refused:
        found(registry, f"{registry.host}/app:1")
    assert (refused.value.code, refused.value.wait_seconds) == (code, wait)


@pytest.mark.parametrize(
    "content",
    [b"no", b"[]", b"{}", b'{"manifests": 3}', b'{"manifests": [{"platform": {"os": "linux"}}]}',
     b'{"manifests": [{"digest": "md5:1"}]}', b'{"manifests": [{"platform": {"os": "a b", "architecture": "x"}}]}',
     b'{"schemaVersion": 1, "architecture": "amd64"}', b"[" * 100_000],
)  # fmt: skip
def test_empty_documents_are_malformed(registry: Registry, content: bytes) -> None:
    registry.documents["/v2/app/manifests/1"] = MANIFEST, content
    assert refusal(registry, f"{registry.host}/app:1") == "ImageMalformed"


@pytest.mark.parametrize(
    ("name", "hosts", "resolved", "code"),
    [
        ("example.org/app", (), "93.184.216.34", "RegistryNotAllowed"),
        ("example.org/app", ("other.org",), "93.184.216.34", "RegistryNotAllowed"),
        ("169.254.169.254/app", ("*",), "169.254.169.254", "AddressRefused"),
        ("metadata.example/app", ("metadata.example",), "169.254.169.254", "AddressRefused"),
        ("example.org/app", ("*",), "10.0.0.1", "AddressRefused"),
        ("example.org/app", ("*",), "::ffff:10.0.0.1", "AddressRefused"),
        ("example.org/app", ("*",), "64:ff9b::a00:1", "AddressRefused"),
        ("example.org/app", ("*",), "fe80::1", "AddressRefused"),
        ("example.org/app", ("example.org",), "127.0.0.1", "AddressRefused"),
        ("example.org/app", ("example.org",), "0.0.0.0", "AddressRefused"),
        ("2130706433.nip.example/app", ("*",), "127.0.0.1", "AddressRefused"),
        ("example.org:8443/app", ("*",), "93.184.216.34", "AddressRefused"),
        # Allowed by name: it is called, and is not there.
        ("example.org/app", ("example.org",), "10.0.0.1", "RegistryUnreachable"),
    ],
)
def test_addresses_inside_the_network_are_not_called(
    monkeypatch: pytest.MonkeyPatch, name: str, hosts: tuple[str, ...], resolved: str, code: str
) -> None:
    called: list[Any] = []

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (resolved, port))]

    def connect(address: tuple[str, int], **_: Any) -> None:
        called.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(ImageUnreadable) as refused:
        look_up(parse_reference(name), AllowedHosts(frozenset(hosts)))
    assert refused.value.code == code
    assert called == ([(resolved, 443)] if code == "RegistryUnreachable" else [])


def test_registry_certificate_must_match_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_pairs(tmp_path, hosts=["registry.test"], client="c", days=1)
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _, *rest, **more: resolve("127.0.0.1", *rest, **more))
    monkeypatch.setattr(outbound, "_may_call", lambda *_, **__: True)
    with a_registry(pair=(tmp_path / "server" / "tls.crt", tmp_path / "server" / "tls.key")) as registry:
        port = registry.host.partition(":")[2]
        right, wrong = f"registry.test:{port}", f"other.test:{port}"
        registry.host = right
        name, allowed = registry.image("app:1", "linux/amd64"), AllowedHosts(frozenset({right, wrong}))
        assert refusal(registry, name, allowed) == "RegistryUntrusted"
        trust = ssl.create_default_context(cafile=tmp_path / "ca.crt")
        monkeypatch.setattr(outbound, "_trust", lambda: trust)
        assert look_up(parse_reference(name), allowed).platforms == ("linux/amd64",)
        assert refusal(registry, f"{wrong}/app:1", allowed) == "RegistryUntrusted"
        # A redirect to plain HTTP is not followed for a registry with TLS.
        single = registry.single("one:1", "linux/amd64")
        registry.redirect_blobs_to = f"http://{right}"
        assert refusal(registry, single, allowed) == "AddressRefused"


def secret(document: Any, kind: str = "kubernetes.io/dockerconfigjson", key: str = ".dockerconfigjson") -> bytes:
    held = base64.b64encode(json.dumps(document).encode()).decode()
    return json.dumps({"type": kind, "data": {key: held}}).encode()


def test_pull_secrets_are_for_their_registry_and_path() -> None:
    auth = base64.b64encode(b"bob:pw:with:colons").decode()
    one = secret(
        {"auths": {"reg.example": {"auth": auth}, "https://index.docker.io/v1/": {"username": "h", "password": "p"}}}
    )
    deep = secret({"reg.example/team": {"username": "t", "password": "p"}}, "kubernetes.io/dockercfg", ".dockercfg")
    both = [one, deep]
    assert credential_for(parse_reference("reg.example/app:1"), both) == RegistryCredential("bob", "pw:with:colons")
    assert credential_for(parse_reference("reg.example/team/app"), both) == RegistryCredential("t", "p")
    assert credential_for(parse_reference("reg.example/teams/app"), both) == RegistryCredential("bob", "pw:with:colons")
    assert credential_for(parse_reference("nginx"), both) == RegistryCredential("h", "p")
    assert credential_for(parse_reference("other.example/app"), both) is None


@pytest.mark.parametrize(
    "odd", [b"", b"{}", secret([]), secret({"auths": {"reg.example": {"auth": "?"}}}), secret({}, "Opaque")]
)
def test_invalid_pull_secret_is_ignored(odd: bytes) -> None:
    assert credential_for(parse_reference("reg.example/app"), [odd]) is None
