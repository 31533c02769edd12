"""The extender on a real socket: accepted clients, requests that are rejected before they are read, and the errors."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from django.db import OperationalError

from hetsched.adapters.http.certificates import make_pairs
from hetsched.contracts.errors import InputError
from hetsched.scheduling.extender import probes, server
from hetsched.scheduling.extender.metrics import REGISTRY
from hetsched.scheduling.extender.probes import ProbeServer
from hetsched.scheduling.extender.server import clients_of
from hetsched.scheduling.extender.tls_server import Certificates, ExtenderResponse, TlsServer
from tests.system.processes import wait_until

MOST = 4096
JSON = {"Content-Type": "application/json"}
VERBS = {"filter", "prioritize", "preempt", "bind"}  # for listed clients only


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    make_pairs(tmp_path / "ours", hosts=["127.0.0.1"], client="kube-scheduler", days=1)
    return tmp_path / "ours"


@pytest.fixture
def tls_server(pairs: Path) -> Iterator[TlsServer]:
    def echo(cluster: str, body: bytes) -> ExtenderResponse:
        if body == b'"busy"':
            raise InputError("ExtenderBusy", "the state is in use")
        if body == b'"odd"':
            raise InputError("ExtenderArgsInvalid", "odd")
        return ExtenderResponse(json.dumps([cluster, len(body)]).encode())

    clients = clients_of(["kube-scheduler=live", "plain"])
    open_door = TlsServer(("127.0.0.1", 0), Certificates(pairs / "server"), clients, {"filter": echo}, MOST)
    thread = threading.Thread(target=open_door.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield open_door
    open_door.shutdown()
    open_door.server_close()
    thread.join()


def secured(pairs: Path, pair: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(pairs / "server" / "ca.crt"))
    if pair is not None:
        context.load_cert_chain(pair / "tls.crt", pair / "tls.key")
    return context


@contextmanager
def calling(tls_server: TlsServer, pairs: Path, pair: Path | None) -> Iterator[http.client.HTTPSConnection]:
    port = tls_server.server_address[1]
    context = secured(pairs, pair)
    with closing(http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=30)) as connection:
        yield connection


def answered(connection: http.client.HTTPSConnection, path: str = "/extender/filter", **more: Any) -> tuple[int, Any]:
    call = {"method": "POST", "body": b"{}", "headers": JSON, **more}
    connection.request(call["method"], path, call["body"], call["headers"])
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read() or b"null")


def is_rejected(tls_server: TlsServer, pairs: Path, pair: Path | None) -> bool:
    """Return whether a caller gets no response at all; TLS 1.3 reports a rejection only when the client reads."""
    try:
        with calling(tls_server, pairs, pair) as connection:
            answered(connection)
    except (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected):
        return True
    return False


def test_listed_client_acts_for_its_cluster_and_keeps_its_connection(tls_server: TlsServer, pairs: Path) -> None:
    with calling(tls_server, pairs, pairs / "client") as connection:
        assert answered(connection) == (200, ["live", 2])
        status, problem = answered(connection, body=b'"busy"')
        assert (status, problem["code"], problem["detail"]) == (503, "ExtenderBusy", "the state is in use")
        assert answered(connection) == (200, ["live", 2])


def issued(
    folder: Path, pairs: Path, name: str, *, days: int = 1, purpose: Any = ExtendedKeyUsageOID.CLIENT_AUTH
) -> Path:
    """Return a certificate pair of the CA that `hetsched certs` does not create."""
    authority = x509.load_pem_x509_certificate((pairs / "ca.crt").read_bytes())
    signing = serialization.load_pem_private_key((pairs / "ca.key").read_bytes(), None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    key, ends = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC) + timedelta(days=days)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(ends - timedelta(days=5))
        .not_valid_after(ends)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .sign(signing, hashes.SHA256())
    )
    folder.mkdir()
    pem = serialization.Encoding.PEM
    (folder / "tls.crt").write_bytes(made.public_bytes(pem))
    plain = serialization.NoEncryption()
    (folder / "tls.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return folder


def test_client_without_our_certificate_gets_no_answer(tls_server: TlsServer, pairs: Path, tmp_path: Path) -> None:
    make_pairs(tmp_path / "theirs", hosts=["127.0.0.1"], client="kube-scheduler", days=1)
    assert is_rejected(tls_server, pairs, None)
    assert is_rejected(tls_server, pairs, tmp_path / "theirs" / "client")
    assert is_rejected(tls_server, pairs, issued(tmp_path / "old", pairs, "kube-scheduler", days=-1))
    server_pair = issued(tmp_path / "server", pairs, "kube-scheduler", purpose=ExtendedKeyUsageOID.SERVER_AUTH)
    assert is_rejected(tls_server, pairs, server_pair)
    assert not is_rejected(tls_server, pairs, issued(tmp_path / "good", pairs, "plain"))


def test_unlisted_client_is_rejected_before_the_body_is_read(
    tls_server: TlsServer, pairs: Path, tmp_path: Path
) -> None:
    with calling(tls_server, pairs, issued(tmp_path / "other", pairs, "other-client")) as connection:
        for path in (*(f"/extender/{verb}" for verb in VERBS), "/nothing"):
            status, problem = answered(connection, path)
            assert (status, problem["code"]) == (403, "ClientNotAllowed")
            connection.close()


def test_permission_table_has_exactly_the_verbs() -> None:
    assert set(server.verbs(server.Extenders(lambda cluster: cast(Any, None)))) == VERBS


def test_old_tls_and_plain_text_get_nowhere(tls_server: TlsServer, pairs: Path) -> None:
    context = secured(pairs, pairs / "client")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    port = int(tls_server.server_address[1])
    with socket.create_connection(("127.0.0.1", port), timeout=30) as plain, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(plain, server_hostname="127.0.0.1")
    with socket.create_connection(("127.0.0.1", port), timeout=30) as plain:
        plain.sendall(b"POST /extender/filter HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
        with suppress(ConnectionError):
            assert not plain.recv(100).startswith(b"HTTP")


@pytest.mark.parametrize(
    ("path", "more", "status", "code"),
    [
        ("/extender/destroy", {}, 404, "NotFound"),
        ("/filter", {}, 404, "NotFound"),
        ("/extender/filter/", {}, 404, "NotFound"),
        ("/extender/filter", {"method": "GET", "body": None}, 405, "MethodNotAllowed"),
        ("/extender/filter", {"method": "TRACE", "body": None}, 405, "MethodNotAllowed"),
        ("/extender/filter", {"headers": {"Content-Type": "text/plain"}}, 415, "UnsupportedMediaType"),
        ("/extender/filter", {"headers": {}}, 415, "UnsupportedMediaType"),
        ("/extender/filter", {"headers": {**JSON, "Content-Length": "x"}}, 411, "LengthRequired"),
        ("/extender/filter", {"headers": {**JSON, "Transfer-Encoding": "chunked"}}, 411, "LengthRequired"),
        ("/extender/filter", {"body": b" " * (MOST + 1)}, 413, "BodyTooLarge"),
        ("/extender/filter", {"body": b'"odd"'}, 400, "ExtenderArgsInvalid"),
    ],
)
def test_invalid_requests_are_rejected_with_a_stable_code(
    tls_server: TlsServer, pairs: Path, path: str, more: dict[str, Any], status: int, code: str
) -> None:
    with calling(tls_server, pairs, pairs / "client") as connection:
        got, problem = answered(connection, path, **more)
    assert (got, problem["code"], problem["status"]) == (status, code, status)
    assert "Traceback" not in json.dumps(problem)


def test_changed_certificates_count_for_the_next_connection(tls_server: TlsServer, pairs: Path) -> None:
    def serial() -> int:
        with calling(tls_server, pairs, pairs / "client") as connection:
            connection.connect()
            assert isinstance(connection.sock, ssl.SSLSocket)
            found = connection.sock.getpeercert(binary_form=True)
        assert found is not None
        return x509.load_der_x509_certificate(found).serial_number

    before = serial()
    assert serial() == before
    make_pairs(pairs, hosts=["127.0.0.1"], client="kube-scheduler", days=1)
    assert serial() != before
    (pairs / "server" / "tls.crt").write_text("half written")
    assert serial() != before  # the previous certificate stays in use
    with pytest.raises(InputError, match="CertificatesUnusable"):
        Certificates(pairs / "server")


def test_missing_certificates_are_reported_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        Certificates(tmp_path)
    assert str(caught.value.message).endswith(" cannot be read: No such file or directory")


def test_empty_list_accepts_no_client() -> None:
    with pytest.raises(InputError, match="ExtenderClientsMissing"):
        clients_of([])


def calls(outcome: str) -> float:
    return REGISTRY.get_sample_value("hetsched_extender_seconds_count", {"verb": "filter", "outcome": outcome}) or 0.0


def away() -> float:
    return REGISTRY.get_sample_value("hetsched_extender_turned_away_total") or 0.0


def test_calls_are_counted_by_outcome_and_figures_need_no_certificate(tls_server: TlsServer, pairs: Path) -> None:
    before = {outcome: calls(outcome) for outcome in ("ok", "refused", "wrong")}
    turned_away = away()
    for body in (b"{}", b'"busy"', b'"odd"', b"{}"):
        with calling(tls_server, pairs, pairs / "client") as connection:
            answered(connection, body=body)
    assert is_rejected(tls_server, pairs, None)
    # Calls are counted after the response.
    expected = {"ok": 2, "refused": 1, "wrong": 1}
    wait_until(lambda: {outcome: calls(outcome) - before[outcome] for outcome in before} == expected, what="calls")
    wait_until(lambda: away() == turned_away + 1, what="turned away")
    server = ProbeServer(("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)) as connection:
            answers = {}
            for path in ("/healthz", "/metrics", "/extender/filter"):
                connection.request("GET", path)
                answer = connection.getresponse()
                answers[path] = answer.status, answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert [status for status, _ in answers.values()] == [200, 200, 404]
    assert 'hetsched_extender_seconds_count{outcome="ok",verb="filter"}' in answers["/metrics"][1]


@pytest.mark.django_db
def test_extender_is_ready_while_the_database_responds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probes._database_answers()

    def fails() -> None:
        raise OperationalError("away")

    monkeypatch.setattr(probes.connection, "cursor", fails)
    assert not probes._database_answers()
