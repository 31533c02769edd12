"""Encryption of stored secrets, and keys derived from SECRET_KEY.

Secrets are encrypted before they are stored and decrypted only where they are used. The cipher is Fernet (AES-128-CBC
and HMAC-SHA-256) under a key that HKDF-SHA-256 derives from SECRET_KEY and the purpose, so an encrypted text can be
decrypted only with the same SECRET_KEY and the same purpose. Without a configured SECRET_KEY every process has its own
key and could not decrypt the texts of other processes, so encryption is refused. Keys for signatures, such as those of
the node agents, are derived in the same way, one for each purpose.
Source: RFC 5869; the Fernet specification.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from functools import lru_cache

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from hetsched.contracts.errors import InputError


def seal(text: str, *, purpose: str) -> str:
    """Return the encrypted text; only `unseal` with the same purpose can decrypt it.

    Raises: InputError `SecretKeyMissing`.
    """
    if not settings.SECRET_KEY_GIVEN:
        raise InputError(
            "SecretKeyMissing",
            "secrets cannot be stored without SECRET_KEY",
            place="SECRET_KEY",
            hint="Set SECRET_KEY to at least 40 random characters, the same in every process",
        )
    return _box(purpose).encrypt(text.encode()).decode()


def unseal(sealed: str, *, purpose: str) -> str:
    """Return the decrypted text of a text that `seal` returned.

    Raises: InputError `SecretKeyChanged`.
    """
    try:
        return _box(purpose).decrypt(sealed.encode()).decode()
    except InvalidToken:
        raise InputError(
            "SecretKeyChanged",
            "the stored secret was encrypted with another SECRET_KEY, or was modified",
            place="SECRET_KEY",
            hint="Restore the previous SECRET_KEY, or enter the secret again",
        ) from None


def derived(purpose: str) -> bytes | None:
    """Return 32 bytes derived from SECRET_KEY for one purpose, or None without a configured SECRET_KEY."""
    return _derive(f"hetsched derived {purpose}") if settings.SECRET_KEY_GIVEN else None


def _box(purpose: str) -> Fernet:
    return Fernet(urlsafe_b64encode(_derive(f"hetsched sealed {purpose}")))


def _derive(info: str) -> bytes:
    return _derive_from(settings.SECRET_KEY, info)


@lru_cache(maxsize=64)
def _derive_from(secret: str, info: str) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info.encode()).derive(secret.encode())
