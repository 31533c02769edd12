"""Deliveries are signed as Standard Webhooks specifies, so that receivers can verify them with any library."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from hetsched.adapters.http.signed_messages import new_secret, signature, signed_headers

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "webhook_receiver.py"
BODY = b'{"type":"workload.placed","id":"w-1"}'
NOW = 1_700_000_000


@pytest.fixture(scope="module")
def receiver() -> ModuleType:
    spec = importlib.util.spec_from_file_location("webhook_receiver", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_signature_equals_the_standard_webhooks_example() -> None:
    made = signature(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_secret_has_256_bits_and_is_unique() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    # 32 bytes are 44 characters of base64.
    assert {len(secret) for secret in secrets} == {len("whsec_") + 44}


def test_documented_receiver_verifies_our_signature(receiver: ModuleType) -> None:
    secret, now = new_secret(), int(time.time())
    headers = signed_headers([secret], "d-1", now, BODY)
    assert receiver.verified(secret, headers, BODY)["id"] == "w-1"


def test_receiver_accepts_both_secrets_during_a_change(receiver: ModuleType) -> None:
    new, old, now = new_secret(), new_secret(), int(time.time())
    headers = signed_headers([new, old], "d-1", now, BODY)
    assert receiver.verified(new, headers, BODY)
    assert receiver.verified(old, headers, BODY)
    assert receiver.verified(new_secret(), headers, BODY) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"webhook-id": "d-2"},
        {"webhook-timestamp": str(NOW + 7)},
        {"webhook-timestamp": "yesterday"},
        {"webhook-timestamp": ""},
        {"webhook-signature": ""},
        {"webhook-signature": "v1,"},
        {"webhook-signature": "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
    ],
)
def test_changed_delivery_is_rejected(receiver: ModuleType, changed: dict[str, str]) -> None:
    secret = new_secret()
    headers = signed_headers([secret], "d-1", NOW, BODY)
    assert receiver.verified(secret, headers, BODY, now=NOW)
    assert receiver.verified(secret, {**headers, **changed}, BODY, now=NOW) is None


def test_other_body_and_old_timestamp_are_rejected(receiver: ModuleType) -> None:
    secret, now = new_secret(), int(time.time())
    headers = signed_headers([secret], "d-1", now, BODY)
    assert receiver.verified(secret, headers, BODY + b" ") is None
    assert receiver.verified(secret, headers, BODY, now=now + 301) is None


def test_documented_receiver_verifies_deliveries() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    secret = new_secret()
    running = subprocess.Popen(
        [sys.executable, str(EXAMPLE), str(port)], env={**os.environ, "WEBHOOK_SECRET": secret}, stdout=subprocess.PIPE
    )
    try:
        headers = signed_headers([secret], "d-1", int(time.time()), BODY)
        assert _posted(port, headers) == 204
        assert _posted(port, headers) == 204
        assert _posted(port, {**headers, "webhook-id": "d-9"}) == 401
        running.terminate()
        output, _ = running.communicate(timeout=30)
        assert output.decode() == "workload.placed w-1\n"
    finally:
        running.kill()
        running.wait()


def _posted(port: int, headers: dict[str, str]) -> int:
    """Post the message as soon as the server listens."""
    asked = Request(f"http://127.0.0.1:{port}/", BODY, headers)
    for _ in range(600):
        try:
            with urlopen(asked, timeout=30) as answer:
                return int(answer.status)
        except HTTPError as refused:
            return refused.code
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the server does not listen")
