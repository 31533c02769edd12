"""`hetsched certs`: certificate pairs that are valid for one purpose only, signed by a kept authority."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.unit.cli.calling import run

FILES = {"tls.crt", "tls.key", "ca.crt"}


def certs(folder: Path, *words: str) -> str:
    done = run("certs", folder, *words)
    assert done.exit_code == 0, done.output
    return done.output


def refused(folder: Path, *words: str) -> str:
    done = run("certs", folder, *words)
    assert done.exit_code == 2
    return done.output


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def purpose(certificate: x509.Certificate) -> list[x509.ObjectIdentifier]:
    return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def test_certificates_are_limited_to_their_purpose_and_owner(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "certs"
    text = certs(folder, "--host", "extender.test", "--host", "10.0.0.1", "--client", "fleet-a", "--days", "30")
    assert "HETSCHED_EXTENDER_CLIENTS=fleet-a" in text
    server, client, authority = (read(folder / name) for name in ("server/tls.crt", "client/tls.crt", "ca.crt"))
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["extender.test"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    assert client.subject.rfc4514_string() == "CN=fleet-a"
    assert (purpose(server), purpose(client)) == ([ExtendedKeyUsageOID.SERVER_AUTH], [ExtendedKeyUsageOID.CLIENT_AUTH])
    for pair in (server, client):
        pair.verify_directly_issued_by(authority)
        assert (pair.not_valid_after_utc - pair.not_valid_before_utc).days == 30
    for side in ("server", "client"):
        assert {file.name for file in (folder / side).iterdir()} == FILES
    assert {file.stat().st_mode & 0o077 for file in folder.rglob("*")} == {0}


def test_new_pairs_are_signed_by_the_existing_authority(tmp_path: Path) -> None:
    certs(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in ("ca.crt", "ca.key", "server/tls.crt", "client/tls.key")}
    certs(tmp_path)
    same = {name for name, content in before.items() if (tmp_path / name).read_bytes() == content}
    assert same == {"ca.crt", "ca.key"}


@pytest.mark.parametrize("words", [("--host", ""), ("--client", "x" * 65), ("--host", "b\u00fccher.test")])
def test_invalid_name_is_rejected_without_files(tmp_path: Path, words: tuple[str, str]) -> None:
    assert "NameInvalid" in refused(tmp_path / "certs", *words)
    assert not (tmp_path / "certs").exists()


def test_half_an_authority_is_refused(tmp_path: Path) -> None:
    certs(tmp_path)
    (tmp_path / "ca.key").unlink()
    assert "AuthorityUnusable" in refused(tmp_path)
    (tmp_path / "ca.key").write_text("no key")
    assert "AuthorityUnusable" in refused(tmp_path)
