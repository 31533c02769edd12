"""Checked here: the periodic check of the invariants as beat starts it, without an enclosing transaction.

Not tested here: the results of the check (tests/apps/test_invariant_checks.py).
"""

from __future__ import annotations

import pytest
from django.db import connection

from hetsched.journal import counters, metric_names
from hetsched.placement.queries.invariants import CHECKED
from workers import periodic_tasks

pytestmark = pytest.mark.django_db(transaction=True)  # a worker's task starts outside of any transaction


def test_every_invariant_is_counted_and_no_transaction_stays_open() -> None:
    assert periodic_tasks.run("workers.canary.check", 60, [])
    assert {sample.labels[0]: sample.value for sample in counters.samples(metric_names.VIOLATIONS)} == dict.fromkeys(
        CHECKED, 0
    )
    assert connection.get_autocommit()
