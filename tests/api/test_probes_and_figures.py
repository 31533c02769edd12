"""Probes tell what works part by part; the figures for Prometheus are those of the database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from hetsched.journal.models import OutboxEvent
from hetsched.placement.models import Decision, Pod
from web.api import health
from web.api.prometheus import REQUESTS

from .conftest import POD, Api


def away(*_: Any, **__: Any) -> Any:
    raise OSError("away")


def ready(caller: Api) -> Any:
    return caller("GET", "/readyz")


@pytest.fixture
def probe(api: Callable[..., Api], cluster: Any) -> Api:
    return api("anonymous")


def test_a_process_is_alive_without_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_CHECKS", {"database": away})
    assert Api()("GET", "/healthz", status=200).json() == {"status": "ok"}


def test_everything_works(probe: Api) -> None:
    answer = ready(probe)
    assert answer.status_code == 200
    document = answer.json()
    assert document["status"] == "ok"
    assert set(document["components"]) == {"database", "broker", "outbox", "scheduler"}
    assert document["clusters"]["lab"]["syncAgeSeconds"] >= 0


def test_without_a_database_it_is_not_ready(probe: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(health._CHECKS, "database", away)
    answer = ready(probe)
    assert (answer.status_code, answer.json()["status"]) == (503, "unready")
    assert answer.json()["components"]["database"] == {"ok": False, "detail": "OSError", "ageSeconds": None}


def test_without_a_broker_it_still_takes_work(probe: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(health._CHECKS, "broker", away)
    answer = ready(probe)
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")


def test_live_events_that_nobody_sends_are_seen(probe: Api) -> None:
    OutboxEvent.objects.update(published_at=None, created_at=timezone.now() - timedelta(minutes=5))
    outbox = ready(probe).json()["components"]["outbox"]
    assert (outbox["ok"], outbox["ageSeconds"] >= 300) == (False, True)


def test_pods_that_nobody_looks_at_are_seen(probe: Api, operator: Api) -> None:
    operator("POST", "workloads/", POD, kind="application/yaml", status=202)
    assert ready(probe).json()["status"] == "ok"
    Pod.objects.update(created_at=timezone.now() - timedelta(minutes=5))
    assert ready(probe).json()["components"]["scheduler"]["ok"] is False


def test_a_long_queue_that_moves_is_no_failure(probe: Api, operator: Api, decided: str) -> None:
    operator("POST", "workloads/", POD.replace("web", "new"), kind="application/yaml", status=202)
    Pod.objects.filter(name="new").update(created_at=timezone.now() - timedelta(minutes=5))
    assert Decision.objects.exists()
    assert ready(probe).json()["components"]["scheduler"]["ok"] is True


def test_methods_that_askers_invent_are_counted_as_one(probe: Api) -> None:
    for method in ("FROB", "BREW"):
        probe("GET", "nodes/")
        probe(method, "nodes/", status=405)
    counted = {sample.labels["method"] for metric in REQUESTS.collect() for sample in metric.samples}
    assert "other" in counted
    assert not counted & {"FROB", "BREW"}


def figures(caller: Api) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = caller("GET", "/metrics", status=200).content.decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_figures_for_prometheus(probe: Api, decided: str) -> None:
    found = figures(probe)
    lab = ("cluster", "lab")
    assert found["hetsched_nodes", (lab, ("ready", "true"))] == 2
    assert found["hetsched_pods", (lab, ("state", "placed"))] == 1
    assert found["hetsched_pods", (lab, ("state", "never-fits"))] == 1
    assert found["hetsched_cards", (lab,)] == 2
    # 500m of 16 CPUs
    assert found["hetsched_requested_ratio", (lab, ("resource", "cpu"))] == 0.5 / 16
    assert found["hetsched_decisions_total", ()] == 2


def test_figures_name_no_node_no_pod_and_no_person(probe: Api, decided: str) -> None:
    text = probe("GET", "/metrics").content.decode()
    for name in ("n1", "web", "service-operator"):
        assert f'"{name}"' not in text
    assert 'route="api/v1/workloads/"' in text
