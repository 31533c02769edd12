"""Sign what is sent to others, so that they know it is ours, whole, and of now.

Rule: Standard Webhooks. A message has an id, which stays the same however often it is sent, and the moment of sending;
HMAC-SHA-256 over `id.timestamp.body` under the secret, base64, behind `v1,`. While a secret is being changed there is
a signature for each that counts, and a receiver takes the message where any of them fits. A secret is `whsec_` and the
base64 of 32 random bytes; the key is what that base64 stands for.
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
    """Return a secret that nobody else has."""
    return PREFIX + b64encode(token_bytes(32)).decode()


def signature(secret: str, message_id: str, timestamp_seconds: int, body: bytes) -> str:
    """Return the signature of a message under one secret."""
    key = b64decode(secret.removeprefix(PREFIX))
    signed = hmac.new(key, f"{message_id}.{timestamp_seconds}.".encode() + body, sha256)
    return f"v1,{b64encode(signed.digest()).decode()}"


def signed_headers(secrets: Sequence[str], message_id: str, timestamp_seconds: int, body: bytes) -> dict[str, str]:
    """Return the headers that go with a message; without a secret it is not signed."""
    headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp_seconds)}
    if secrets:
        signatures = [signature(secret, message_id, timestamp_seconds, body) for secret in secrets]
        headers["webhook-signature"] = " ".join(signatures)
    return headers
