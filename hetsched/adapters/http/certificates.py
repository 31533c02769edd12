"""Private certificate authority that issues one server and one client certificate, for mutual TLS between two programs.

Keys are ECDSA on P-256. A pair consists of a certificate and its key. The authority is valid for ten years and is
stored, so that pairs can be reissued, also for additional host names, without distributing a new authority. A server
pair is valid for servers only, a client pair for clients only. Each of the folders `server` and `client` holds the
content of one Secret: `tls.crt`, `tls.key` and `ca.crt`. The authority's own key stays in the parent folder and is
never distributed.
Source: RFC 5280.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hetsched.contracts.errors import InputError

_AUTHORITY_DAYS = 3650
_SLACK = timedelta(minutes=5)  # tolerance for clock skew


def make_pairs(folder: Path, *, hosts: Sequence[str], client: str, days: int) -> None:
    """Write the server and the client pair, signed by the folder's authority, which is created on first use.

    Raises: InputError `AuthorityUnusable` or `NameInvalid`.
    """
    server_names = x509.SubjectAlternativeName([_general(name) for name in hosts])
    client_names = x509.SubjectAlternativeName([_general(client)])
    server, own = _name(hosts[0]), _name(client)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority, key = _authority(folder)
    _pair(folder / "server", authority, key, server, server_names, ExtendedKeyUsageOID.SERVER_AUTH, days)
    _pair(folder / "client", authority, key, own, client_names, ExtendedKeyUsageOID.CLIENT_AUTH, days)


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the authority of a folder, creating it on first use. Raises: InputError `AuthorityUnusable`."""
    at, key_at = folder / "ca.crt", folder / "ca.key"
    if at.exists() != key_at.exists():
        lacking = key_at if at.exists() else at
        raise InputError("AuthorityUnusable", f"{lacking.name} is missing", place=str(folder), hint="Use a new folder")
    if at.exists():
        try:
            key = serialization.load_pem_private_key(key_at.read_bytes(), None)
            kept = x509.load_pem_x509_certificate(at.read_bytes())
        except ValueError as error:
            raise InputError("AuthorityUnusable", str(error), place=str(folder), hint="Use a new folder") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise InputError("AuthorityUnusable", "the key is not an elliptic-curve key", place=str(key_at))
        return kept, key
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("hetsched extender authority")
    usage = x509.KeyUsage(
        key_cert_sign=True, crl_sign=True, digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _certificate_builder(name, name, key, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(key_at, _private(key))
    _write(at, _pem(certificate))
    return certificate, key


def _pair(
    folder: Path,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    name: x509.Name,
    names: x509.SubjectAlternativeName,
    purpose: x509.ObjectIdentifier,
    days: int,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        _certificate_builder(name, authority.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(issuer, critical=False)
        .add_extension(names, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    folder.mkdir(mode=0o700, exist_ok=True)
    _write(folder / "tls.key", _private(key))
    _write(folder / "tls.crt", _pem(certificate))
    _write(folder / "ca.crt", _pem(authority))


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + timedelta(days=days))
    )


def _name(text: str) -> x509.Name:
    """Return an X.509 name with this common name. Raises: InputError `NameInvalid`."""
    try:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
    except ValueError:
        raise InputError("NameInvalid", f"the name {text[:80]!r} must have 1 to 64 characters") from None


def _general(text: str) -> x509.GeneralName:
    """Return an IP address or DNS name as an X.509 general name. Raises: InputError `NameInvalid`."""
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError:
        raise InputError(
            "NameInvalid", f"{text[:80]!r} is neither a host name nor an IP address", place="--host"
        ) from None


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically, readable by its owner only."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    part.replace(path)
