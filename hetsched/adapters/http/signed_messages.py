"""Signatures of outgoing messages: origin, integrity and time of sending.

The format is Standard Webhooks. A message has an id, which is the same for every delivery attempt, and the time of
sending. The signature is HMAC-SHA-256 over `id.timestamp.body` with the secret, in base64, prefixed with `v1,`. During
a rotation there is one signature per valid secret, and a receiver accepts the message if any of them matches. A secret
is `whsec_` and the base64 of 32 random bytes; the key is the decoded base64.
Source: https://www.standardwebhooks.com, specification 1.0.0; RFC 2104.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import sha256
from secrets import token_bytes

PREFIX = "whsec_"


def new_secret() -> str:
    """Return a new random secret."""
    return PREFIX + b64encode(token_bytes(32)).decode()


def signature(secret: str, message_id: str, timestamp_seconds: int, body: bytes) -> str:
    """Return the signature of a message under one secret."""
    key = b64decode(secret.removeprefix(PREFIX))
    signed = hmac.new(key, f"{message_id}.{timestamp_seconds}.".encode() + body, sha256)
    return f"v1,{b64encode(signed.digest()).decode()}"


def signed_headers(secrets: Sequence[str], message_id: str, timestamp_seconds: int, body: bytes) -> dict[str, str]:
    """Return the headers of a message; without secrets the message is not signed."""
    headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp_seconds)}
    if secrets:
        signatures = [signature(secret, message_id, timestamp_seconds, body) for secret in secrets]
        headers["webhook-signature"] = " ".join(signatures)
    return headers
