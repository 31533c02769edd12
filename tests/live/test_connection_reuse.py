"""Sockets reuse their SQLite connection between reads, and close it when it is idle."""

from __future__ import annotations

import time

import pytest
from django.db import connection

from web.live import database
from web.live.database import in_database

pytestmark = pytest.mark.django_db(transaction=True)


def look() -> tuple[float | None, float]:
    """Run a query; return the time until which the connection is kept, and the current time."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return connection.close_at, time.monotonic()


@pytest.mark.skipif(connection.vendor != "sqlite", reason="other databases have a pool")
async def test_connection_is_reused_and_closed_when_idle() -> None:
    database._kept.clear()
    await in_database(look)()
    kept_until, now = await in_database(look)()
    assert kept_until is not None
    assert now < kept_until <= now + database.KEPT_SECONDS
    again, _ = await in_database(look)()
    assert again == kept_until  # a query does not extend it
