"""Sockets do not open SQLite anew for each look, and let go of a connection after a while."""

from __future__ import annotations

import time

import pytest
from django.db import connection

from web.live import database
from web.live.database import in_database

pytestmark = pytest.mark.django_db(transaction=True)


def look() -> tuple[float | None, float]:
    """Read something; return until when the connection is kept, and now."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return connection.close_at, time.monotonic()


@pytest.mark.skipif(connection.vendor != "sqlite", reason="other databases have a pool")
async def test_it_is_kept_from_one_call_to_the_next_and_then_closed() -> None:
    database._kept.clear()
    await in_database(look)()
    kept_until, now = await in_database(look)()
    assert kept_until is not None
    assert now < kept_until <= now + database.KEPT_SECONDS
    again, _ = await in_database(look)()
    assert again == kept_until  # a call does not prolong it
