"""A process that hangs in a transaction, or whose machine vanished, does not block other processes indefinitely."""

from __future__ import annotations

import pytest

from hetsched.project.settings import IDLE_TRANSACTION_SECONDS
from tests.system.plane import served

SHOW = """
import django; django.setup()
from django.db import connection
with connection.cursor() as cursor:
    cursor.execute("SHOW idle_in_transaction_session_timeout")
    print(cursor.fetchone()[0])
"""


@pytest.mark.needs("postgres", "redis-server")
def test_database_ends_abandoned_transactions() -> None:
    with served() as plane:
        assert plane.run("-c", SHOW).strip() == f"{IDLE_TRANSACTION_SECONDS}s"
