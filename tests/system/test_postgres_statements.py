"""Statements without Django's cursor, on PostgreSQL: results, plans, and rows inserted together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.test_submission_statements import budget as budget_of_a_submission
from tests.apps.test_placement_conflicts import CONTRADICTIONS
from tests.system.driver import Driver
from tests.system.plane import served
from tests.workers.test_statement_budget import budget as budget_of_a_pod

pytestmark = pytest.mark.needs("postgres", "redis-server")
# The tests of SQLite, each in a transaction that is rolled back.
_BOTH = """
from django.db import transaction
from tests.apps import {module}
with transaction.atomic():
    {module}.{test}({arguments})
    transaction.set_rollback(True)
print("passed")
"""
_PLANS = """
from django.db import connection
from hetsched.inventory.models import Cluster
from hetsched.journal.models import Topic
from hetsched.storage.bulk_rows import insert, new, update
from hetsched.storage.statements import change_many, fetch
for power in range(10):
    fetch("SELECT id FROM inventory_cluster WHERE revision = %s AND name LIKE 'a%%'", [1000**power])
    Cluster.objects.filter(revision=power).exists()
    topics = [new(Topic, name=f"t{power}-{n}", revision=1) for n in range(2)]
    insert(topics)
    update(topics, ("revision",))
    change_many("UPDATE journal_topic SET revision = %s WHERE name = %s", [(2, topic.name) for topic in topics])
for (text,) in fetch("SELECT statement FROM pg_prepared_statements", []):
    print(text.partition("(")[0])
"""
_LIST = """
from django.db import connection, transaction
from django.utils import timezone
from hetsched.placement.models import Pod
from hetsched.storage.bulk_rows import insert, new
from hetsched.storage.hot_statements import QUEUE_PODS
from hetsched.storage.statements import change, fetch
from tests.builders import a_pod
from tests.situations import a_cluster
sent = []

def note(execute, sql, params, many, context):
    sent.append((sql, params))
    return execute(sql, params, many, context)

with transaction.atomic():
    cluster, spec, now = a_cluster().pk, a_pod("p").build(), timezone.now()
    insert([new(Pod, cluster_id=cluster, name=f"p{n}", spec=spec, state="bound", created_at=now) for n in range(2000)])
    change("ANALYZE placement_pod", [])
    with connection.execute_wrapper(note):
        QUEUE_PODS(cluster=cluster, states=("not-now", "never-fits"), bits=1)
    ((sql, values),) = sent
    print(*(line for (line,) in fetch("EXPLAIN " + sql, values) if "Index Cond" in line))
    transaction.set_rollback(True)
"""
_TOGETHER = """
from django.db import connection, transaction
from tests.apps.test_rows_inserted_together import _rows
from tests.workers.test_statement_budget import statements_of
from hetsched.storage.bulk_rows import insert_together
with transaction.atomic():
    print(len(statements_of(lambda: insert_together(*_rows(3)))))
    transaction.set_rollback(True)
"""
_SUBMISSION = """
from django.test import Client
from hetsched.access.tokens import create_token
from hetsched.journal.publish import background_sender
from hetsched.placement import quotas
from hetsched.placement.actions import submissions
from tests.system.driver import add_cluster
from tests.workers.test_statement_budget import statements_of
submissions.counts_are_due = lambda cluster_id: False
quotas.COUNTED_SECONDS = float("inf")
add_cluster("lab", 1)
token = create_token(role="operator", name="test")[1]
client = Client(headers={"Host": "localhost", "Authorization": f"Bearer {token}"})

def submit(name):
    pod = {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "job:1"}]}}
    body = {"manifest": {"apiVersion": "v1", "kind": "Pod", **pod}, "cluster": "lab"}
    more = {"content_type": "application/json", "headers": {"Idempotency-Key": name}}
    assert client.post("/api/v1/workloads/", body, **more).status_code == 202

with background_sender():  # as in a web process
    submit("first")
    print(*(len(statements_of(lambda: submit("alone"))) for _ in range(2)))
"""
_PATH = """
import pytest
from hetsched.journal.publish import background_sender
from tests.workers.test_statement_budget import limit_statements, statements_of_each_step
limit_statements(pytest.MonkeyPatch())
with background_sender():  # as in an informer process
    print(*(len(alone) for alone, _ in statements_of_each_step().values()))
"""
_OPENING = """
from threading import Thread
from django.db import connection
from hetsched.inventory.node_loads import advance
from hetsched.journal.models import Topic
from hetsched.placement.actions import open_topic
from hetsched.storage.write_lock import write_transaction
from tests.system.driver import add_cluster

def subscribe():
    open_topic("node:opened/n0")
    connection.close()

cluster, opening = add_cluster("opened", 1), Thread(target=subscribe)
with write_transaction():
    advance(cluster)
    opening.start()
    opening.join(1)
    print(opening.is_alive())
opening.join()
print(list(Topic.objects.filter(name="node:opened/n0").values_list("revision", flat=True)))
"""


_PLACEMENTS = [
    *(("test_placed_pods_have_the_ids_of_their_rows", f"{pods}") for pods in (1, 3, 30)),
    *(("test_revision_epoch_and_policy_of_the_decision_are_current", f"{others}") for others in (0, 2)),
    *(
        ("test_name_and_resources_of_a_live_pod_are_a_contradiction", f"{case!r}, {others}")
        for case in CONTRADICTIONS
        for others in (0, 2)
    ),
]


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    with served() as plane:
        assert plane.driver
        yield plane.driver


@pytest.mark.parametrize(
    ("module", "test", "arguments"),
    [
        ("test_direct_statements", "test_rows_counts_and_a_percent_sign", "None"),
        ("test_direct_statements", "test_errors_are_djangos", "None"),
        ("test_direct_statements", "test_failed_transaction_rejects_statements", "None"),
        ("test_direct_statements", "test_rolled_back_statement_has_no_effect", "None"),
        ("test_direct_statements", "test_query_listeners_receive_each_statement", ""),
        ("test_rows_inserted_together", "test_stored_rows_have_the_ids_of_the_objects", "3"),
        ("test_rows_inserted_together", "test_stored_rows_have_the_ids_of_the_objects", "300"),
        ("test_rows_inserted_together", "test_rows_refer_to_rows_inserted_with_them", "1"),
        ("test_rows_inserted_together", "test_rows_refer_to_rows_inserted_with_them", "3"),
        ("test_rows_inserted_together", "test_rows_refer_to_rows_inserted_with_them", "30"),
        ("test_rows_inserted_together", "test_rows_without_generated_ids_are_stored", ""),
        ("test_rows_inserted_together", "test_each_kind_of_value_is_stored_and_updated_in_many_rows", ""),
        ("test_rows_inserted_together", "test_numbers_of_each_kind_are_stored_in_many_rows", ""),
        *(("test_placement_conflicts", *case) for case in _PLACEMENTS),
    ],
)
def test_statements_behave_as_on_sqlite(driver: Driver, module: str, test: str, arguments: str) -> None:
    assert driver("execute", code=_BOTH.format(module=module, test=test, arguments=arguments)) == "passed\n"


def test_connection_keeps_only_plans_of_inserts(driver: Driver) -> None:
    """Another kept plan would stay that of small tables while the tables grow."""
    assert driver("execute", code=_PLANS) == "INSERT INTO journal_topic \n"


def test_list_is_a_condition_of_an_index(driver: Driver) -> None:
    """Regression: the requeueing of each confirmation read all pods, 0.22 ms for 1,000 pods."""
    (condition,) = driver("execute", code=_LIST).splitlines()
    assert "cluster_id = " in condition
    assert "state)::text = ANY" in condition


def test_few_rows_of_several_models_are_one_statement(driver: Driver) -> None:
    assert driver("execute", code=_TOGETHER) == "1\n"


def test_topic_opens_after_the_transactions_on_its_cluster() -> None:
    with served() as plane:  # a separate one, because the cluster remains
        assert plane.driver
        assert plane.driver("execute", code=_OPENING) == "True\n[1]\n"


def test_statements_of_a_submission_equal_the_page() -> None:
    with served() as plane:  # a separate one, because the submission remains
        assert plane.driver
        counted = plane.driver("execute", code=_SUBMISSION).split()
    assert list(map(int, counted)) == [postgres for _, postgres in budget_of_a_submission().values()]


def test_statements_of_a_pod_equal_the_page() -> None:
    with served() as plane:  # a separate one, because the cluster remains
        assert plane.driver
        counted = plane.driver("execute", code=_PATH).split()
    assert list(map(int, counted)) == [postgres for _, postgres, _ in budget_of_a_pod().values()]
