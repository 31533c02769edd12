"""Callbacks report the states of a workload to its submitter, only at addresses that the deployment allows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from hetsched.contracts.errors import InputError
from hetsched.journal import counters, metric_names
from hetsched.placement.actions import cancel
from hetsched.placement.models import CallbackHost, Delivery, Workload
from hetsched.placement.notifications import deliveries
from tests.builders import a_pod
from tests.recording_server import Receiver, receiving
from tests.situations import ALICE, a_cluster, placing, recorded, submitted
from workers import callback, sweep

pytestmark = pytest.mark.django_db


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    with receiving() as listening:
        settings.HETSCHED_CALLBACK_HOSTS = [listening.host]
        yield listening


def _placed(url: str) -> Workload:
    cluster = a_cluster()
    workload = submitted(cluster, a_pod("p"), callback_url=url)
    assert not deliveries.due_deliveries().exists()
    recorded(cluster, placing(cluster, "n1"))
    return workload


def _later() -> None:
    """Make every delivery due now."""
    Delivery.objects.update(not_before=timezone.now())
    CallbackHost.objects.update(quiet_until=None)


def test_each_state_is_sent_once(receiver: Receiver) -> None:
    workload = _placed(receiver.url)
    assert callback.run(receiver.host) == 1
    assert callback.run(receiver.host) == 0
    cancel(workload, actor=ALICE, reason="enough")
    assert callback.run(receiver.host) == 1
    assert [(document["id"], document["state"], document["previousState"]) for document in receiver.documents] == [
        (workload.pk, "placed", "pending"), (workload.pk, "cancelled", "placed"),
    ]  # fmt: skip
    assert {delivery.state for delivery in Delivery.objects.all()} == {Delivery.DELIVERED}


def test_rejected_delivery_is_retried_and_finally_dropped(receiver: Receiver) -> None:
    _placed(receiver.url)
    receiver.status = 500
    for attempt in range(1, deliveries.MOST_ATTEMPTS + 1):
        assert callback.run(receiver.host) == 0
        assert len(receiver.requests) == attempt
        assert callback.run(receiver.host) == 0  # not due yet
        assert len(receiver.requests) == attempt
        _later()
    assert not deliveries.due_deliveries().exists()
    given_up = Delivery.objects.get()
    assert (given_up.state, given_up.status, given_up.code) == (Delivery.DEAD, 500, "Answer500")
    assert given_up.log.count() == deliveries.MOST_ATTEMPTS
    # All ten copies have the same message id.
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == 1
    assert len({request.body for request in receiver.requests}) == 1


def test_sweep_finds_unsent_callbacks(receiver: Receiver) -> None:
    _placed(receiver.url)
    sweep.run()
    for _, wake, *_rest in list(connection.run_on_commit):
        if getattr(wake, "task", "") == "workers.callback.run":
            wake()
            break
    assert [document["state"] for document in receiver.documents] == ["placed"]


def test_redirect_is_not_followed(receiver: Receiver) -> None:
    _placed(receiver.url)
    receiver.status, receiver.headers = 307, {"Location": "http://169.254.169.254/latest"}
    assert not callback.run(receiver.host)
    assert len(receiver.requests) == 1


def test_removed_host_is_not_called(receiver: Receiver, settings: Any) -> None:
    _placed(receiver.url)
    settings.HETSCHED_CALLBACK_HOSTS = []
    assert not callback.run(receiver.host)
    assert receiver.requests == []
    assert Delivery.objects.get().code == "HostNotAllowed"


def test_silent_host_is_not_called_for_a_while(settings: Any) -> None:
    settings.HETSCHED_CALLBACK_HOSTS = ["127.0.0.1:9"]
    cluster = a_cluster()
    for name in ("p", "q"):
        submitted(cluster, a_pod(name), callback_url="http://127.0.0.1:9/")
    recorded(cluster, placing(cluster, "n1"))
    assert not callback.run("127.0.0.1:9")
    assert sorted(Delivery.objects.values_list("attempts", flat=True)) == [0, 1]
    assert deliveries.due_hosts() == []
    assert not callback.run("127.0.0.1:9")
    assert sorted(Delivery.objects.values_list("attempts", flat=True)) == [0, 1]
    CallbackHost.objects.update(quiet_until=timezone.now() - timedelta(seconds=1))
    assert deliveries.due_hosts() == ["127.0.0.1:9"]


def test_host_is_called_by_one_process_at_a_time(receiver: Receiver) -> None:
    _placed(receiver.url)
    assert deliveries.lock_host(receiver.host)
    assert callback.run(receiver.host) == 0
    assert (receiver.requests, deliveries.due_hosts()) == ([], [])
    # The claim of a process that died expires.
    CallbackHost.objects.update(held_until=timezone.now() - timedelta(seconds=1))
    assert callback.run(receiver.host) == 1


def test_retry_after_of_a_host_is_respected(receiver: Receiver) -> None:
    _placed(receiver.url)
    receiver.status, receiver.headers = 429, {"Retry-After": "600"}
    before = timezone.now()
    callback.run(receiver.host)
    assert Delivery.objects.get().not_before - before >= timedelta(seconds=600)


def test_backoff_triples_with_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    # 5, 15, 45, 135, 405, 1215, 3645 s, then 3 h; the minimum is half of each.
    waits = [5, 15, 45, 135, 405, 1215, 3645, 10_800, 10_800]
    for least, share in ((1.0, 1.0), (0.5, 0.5)):
        monkeypatch.setattr("random.uniform", lambda low, high, share=share: share)
        assert [deliveries.retry_delay(n).total_seconds() for n in range(1, 10)] == [wait * least for wait in waits]
    assert deliveries.retry_delay(1, 1e9) == timedelta(hours=1)


def dead() -> float:
    """Return the stored count of deliveries that were given up."""
    counters.flush()
    return sum(sample.value for sample in counters.samples(metric_names.DELIVERIES) if sample.labels == ("dead",))


def test_callback_pending_for_three_days_is_given_up(receiver: Receiver) -> None:
    _placed(receiver.url)
    now = timezone.now()
    assert deliveries.fail_old_deliveries(now) == 0
    before = dead()
    assert deliveries.fail_old_deliveries(now + timedelta(days=3, minutes=1)) == 1
    assert Delivery.objects.get().code == "TooOld"
    assert dead() == before + 1  # regression: expired deliveries were missing in the metric


def test_old_deliveries_are_deleted(receiver: Receiver) -> None:
    _placed(receiver.url)
    assert deliveries.prune_deliveries(ended_before=timezone.now() + timedelta(days=400)) == 0
    callback.run(receiver.host)
    assert deliveries.prune_deliveries(ended_before=timezone.now() + timedelta(seconds=1)) == 1


def test_undone_change_sends_no_callback(receiver: Receiver) -> None:
    from django.db import transaction

    cluster = a_cluster()
    submitted(cluster, a_pod("p"), callback_url=receiver.url)
    with transaction.atomic():
        recorded(cluster, placing(cluster, "n1"))
        transaction.set_rollback(True)
    assert not Delivery.objects.exists()


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/",
        "http://ci.example:8080/",
        "http://ci.example.evil.test/",
        "http://evil.test/?ci.example",
        "http://ci.example@evil.test/",
        "http://[::ffff:169.254.169.254]/",
        "http://2852039166/",
        "ftp://ci.example/",
        "file:///etc/passwd",
    ],
)
def test_disallowed_callback_is_rejected_at_submission(settings: Any, url: str) -> None:
    settings.HETSCHED_CALLBACK_HOSTS = ["ci.example:443", "ci.example:80"]
    with pytest.raises(InputError) as refused:
        submitted(a_cluster(), callback_url=url)
    assert refused.value.code == "CallbackNotAllowed"
    assert not Workload.objects.exists()


@pytest.mark.parametrize("url", ["https://ci.example/done", "https://CI.example:443/done", "http://ci.example/"])
def test_allowed_addresses_are_accepted(settings: Any, url: str) -> None:
    settings.HETSCHED_CALLBACK_HOSTS = ["ci.example"]
    assert submitted(a_cluster(), callback_url=url).callback_url == url
