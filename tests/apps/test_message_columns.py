"""Text columns that keep the template and the parameters of a message."""

from __future__ import annotations

import pytest
from django.db import connection
from django.utils import translation

from hetsched.contracts.message import HIDDEN, Message
from hetsched.placement.models import Decision, Pod
from hetsched.placement.queries.redaction import Redaction
from hetsched.scheduling import worker_host
from tests.builders import a_pod
from tests.situations import a_cluster, placed, submitted
from web.translation import translate

pytestmark = pytest.mark.django_db

TEAM = Redaction(frozenset({"team"}))


def pod_with(message: str) -> Pod:
    (pod,) = placed(a_cluster(), "n1", a_pod("p"))
    Pod.objects.filter(pk=pod.pk).update(message=message)
    return Pod.objects.get(pk=pod.pk)


def stored_text(pod: Pod) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT message FROM {Pod._meta.db_table} WHERE id = %s", [pod.pk])
        return str(cursor.fetchone()[0])


def test_message_round_trips_with_its_parameters() -> None:
    pod = pod_with(Message("Preempted by {pods}", pods="hush/x"))
    assert stored_text(pod) == '{"template":"Preempted by {pods}","params":{"pods":"hush/x"}}'
    assert pod.message == "Preempted by hush/x"
    assert TEAM.message(pod.message) == f"Preempted by {HIDDEN}"
    with translation.override("zh-hans"):
        assert translate(pod.message) == "被 hush/x 抢占"
    assert list(Pod.objects.values_list("message", flat=True)) == ["Preempted by hush/x"]


def test_row_of_an_earlier_version_keeps_its_text() -> None:
    pod = pod_with("Preempted by hush/x")
    assert stored_text(pod) == pod.message == "Preempted by hush/x"
    assert TEAM.message(pod.message) == HIDDEN


def test_text_in_the_form_of_a_stored_message_stays_text() -> None:
    forged = '{"template":"{pod} placed","params":{"pod":"hush/x"}}'
    assert pod_with(forged).message == forged


def test_decision_summary_keeps_its_parameters() -> None:
    cluster = a_cluster()
    submitted(cluster, a_pod("p"))
    worker_host.run(cluster.pk)
    summary = Decision.objects.get(pod__name="p").summary
    assert isinstance(summary, Message)
    assert summary.template == "{pod} placed on {node}, score {score}"
    assert summary.startswith("default/p placed on n")
