"""Valid and hostile kubeconfigs for tests, with certificates created on demand."""

from __future__ import annotations

from base64 import b64encode
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


@cache
def certificate(name: str) -> tuple[bytes, ec.EllipticCurvePrivateKey]:
    """Return a self-signed certificate, PEM, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    built = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    built = built.not_valid_before(now).not_valid_after(now + timedelta(days=1))
    return built.sign(key, SHA256()).public_bytes(Encoding.PEM), key


def encoded(content: bytes) -> str:
    return b64encode(content).decode()


def key_of(name: str, password: bytes = b"") -> str:
    """Return the private key of a certificate as it is written in a kubeconfig."""
    sealing = BestAvailableEncryption(password) if password else NoEncryption()
    return encoded(certificate(name)[1].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, sealing))


def kubeconfig(
    *, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, **context: Any
) -> dict[str, Any]:
    """Return a valid kubeconfig with a token, changed by the arguments."""
    server = {
        "server": "https://api.example.org:6443",
        "certificate-authority-data": encoded(certificate("authority")[0]),
        **(cluster or {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "current-context": "lab",
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me", **context}}],
        "clusters": [{"name": "lab", "cluster": server}],
        "users": [{"name": "me", "user": deepcopy(user) if user is not None else {"token": "canary-5f2d"}}],
    }
