"""Claims of service account tokens: which tokens have an account, audiences and an end."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetsched.adapters.kubernetes.connections.service_account_tokens import TokenClaims, claims_of
from hetsched.inventory.token_renewal import renewal_time

CLAIMS = {"sub": "system:serviceaccount:team:agent", "aud": ["a", "b"], "iat": 1_000, "exp": 4_600}


def token(**changes: Any) -> str:
    payload = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not None}
    return f"header.{urlsafe_b64encode(json.dumps(payload).encode()).decode().rstrip('=')}.signature"


def test_claims_name_account_audiences_and_lifetime() -> None:
    found = claims_of(token())
    issued = datetime.fromtimestamp(1_000, UTC)
    assert found == TokenClaims("team", "agent", ("a", "b"), issued, issued + timedelta(hours=1))
    assert found.lifetime == timedelta(hours=1)
    one = claims_of(token(aud="single"))
    assert one is not None
    assert one.audiences == ("single",)


@pytest.mark.parametrize("kind", ["pod", "secret", "node"])
def test_owner_of_a_bound_token_is_named(kind: str) -> None:
    owner = {"namespace": "team", kind: {"name": "x", "uid": "u"}}
    found = claims_of(token(**{"kubernetes.io": owner}))
    assert found is not None
    assert found.bound_to == kind.capitalize()


@pytest.mark.parametrize(
    "text",
    [
        "", "opaque", "a.b.c", "a..c", token(exp=None), token(sub="user"), token(sub="system:serviceaccount:team"),
        token(exp=1_000), token(exp=10**30), token(iat="now"), token(aud=5),
    ],
)  # fmt: skip
def test_other_tokens_have_no_claims(text: str) -> None:
    assert claims_of(text) is None


@given(st.binary(), st.text())
def test_random_payload_has_no_claims(payload: bytes, text: str) -> None:
    assert claims_of(f"a.{urlsafe_b64encode(payload).decode()}.c") is None
    assert claims_of(f"a.{text}.c") is None


@given(st.uuids(), st.integers(600, 10**7))
def test_renewal_is_spread_around_80_percent_of_the_lifetime(installation: UUID, seconds: int) -> None:
    found = claims_of(token(exp=1_000 + seconds))
    assert found is not None
    share = (renewal_time(found, installation) - found.issued_at) / found.lifetime
    assert 0.7499 <= share <= 0.8501
    assert renewal_time(found, installation) == renewal_time(found, installation)
