"""Secrets that rows keep: sealed before they are stored, opened only where they are used.

Rule: Fernet (AES-128-CBC and HMAC-SHA-256) under a key that HKDF-SHA-256 derives from SECRET_KEY and the purpose, so a
sealed text opens only with the same SECRET_KEY and for what it was sealed for. Where no SECRET_KEY is set every
process has its own, and nothing could be opened again: then nothing is sealed.
Source: RFC 5869; the Fernet specification.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from hetsched.contracts.errors import InputError


def seal(text: str, *, purpose: str) -> str:
    """Return a text that only `unseal` with the same purpose opens.

    Raises: InputError `SecretKeyMissing`.
    """
    if not settings.SECRET_KEY_GIVEN:
        raise InputError(
            "SecretKeyMissing",
            "without SECRET_KEY nothing that is secret can be kept",
            place="SECRET_KEY",
            hint="Set it to 40 random characters or more, the same for every process",
        )
    return _box(purpose).encrypt(text.encode()).decode()


def unseal(sealed: str, *, purpose: str) -> str:
    """Return the text that was sealed.

    Raises: InputError `SecretKeyChanged`.
    """
    try:
        return _box(purpose).decrypt(sealed.encode()).decode()
    except InvalidToken:
        raise InputError(
            "SecretKeyChanged",
            "what is stored was sealed with another SECRET_KEY, or changed since",
            place="SECRET_KEY",
            hint="Set the SECRET_KEY of that time, or hand the secret in again",
        ) from None


def _box(purpose: str) -> Fernet:
    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=f"hetsched sealed {purpose}".encode())
    return Fernet(urlsafe_b64encode(key.derive(settings.SECRET_KEY.encode())))
