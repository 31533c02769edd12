"""Probes report the state of each component; Prometheus metrics match the database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, transaction
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from hetsched.contracts.api.stored_tokens import StoredToken
from hetsched.contracts.message import Message
from hetsched.inventory.models import Cluster, ClusterKind, Connection, Node, Sync
from hetsched.inventory.node_loads import Conflict, advance
from hetsched.journal import counters, metric_names
from hetsched.journal.models import AuditSeal, Figure, OutboxEvent
from hetsched.placement.models import Decision, Pod, Reservation
from web.api.monitoring import health
from web.api.monitoring.prometheus import REQUESTS
from workers import canary

from .conftest import POD, Api


def away(*_: Any, **__: Any) -> Any:
    raise OSError("away")


def ready(caller: Api) -> Any:
    return caller("GET", "/readyz")


@pytest.fixture(autouse=True)
def nothing_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the counters of earlier tests of this process."""
    monkeypatch.setattr(counters, "_counted", {})


@pytest.fixture
def probe(api: Callable[..., Api], cluster: Any) -> Api:
    """Return a function that calls probes of a server with running workers."""
    for queue in ("schedule", "io"):
        canary.run(queue)
    counters.flush()
    return api("anonymous")


def test_process_is_alive_without_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_CHECKS", {"database": away})
    for address in ("/healthz", "/livez"):
        assert Api()("GET", address, status=200).json() == {"status": "ok"}


def test_all_components_are_healthy(probe: Api) -> None:
    answer = ready(probe)
    assert answer.status_code == 200
    document = answer.json()
    assert document["status"] == "ok"
    assert set(document["components"]) == {
        "database", "migrations", "pages", "broker", "outbox", "effects", "scheduler", "schedule-queue", "workers",
        "watch", "tokens",
    }  # fmt: skip
    assert document["clusters"]["lab"]["syncAgeSeconds"] >= 0


def test_missing_database_is_unready(probe: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(health._CHECKS, "database", away)
    answer = ready(probe)
    assert (answer.status_code, answer.json()["status"]) == (503, "unready")
    assert answer.json()["components"]["database"] == {"ok": False, "detail": "OSError", "ageSeconds": None}


def test_missing_templates_are_unready(probe: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_rendered", False)
    with monkeypatch.context() as broken:
        broken.setattr(health, "render_to_string", away)
        answer = ready(probe)
        assert (answer.status_code, answer.json()["status"]) == (503, "unready")
        assert answer.json()["components"]["pages"]["ok"] is False
    assert ready(probe).json()["components"]["pages"]["ok"] is True


def test_missing_broker_is_still_ready(probe: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(health._CHECKS, "broker", away)
    answer = ready(probe)
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")


def test_unsent_live_events_are_counted(probe: Api) -> None:
    OutboxEvent.objects.update(published_at=None, created_at=timezone.now() - timedelta(minutes=5))
    outbox = ready(probe).json()["components"]["outbox"]
    assert (outbox["ok"], outbox["ageSeconds"] >= 300) == (False, True)


def test_placements_without_effects_are_counted(probe: Api, decided: str) -> None:
    age = 'hetsched_placement_effects_oldest_seconds{cluster="lab"} '
    assert f"{age}0.0" in probe("GET", "/metrics").content.decode()
    assert ready(probe).json()["components"]["effects"] == {
        "ok": True, "detail": "age of the oldest placement without written effects", "ageSeconds": None,
    }  # fmt: skip
    Cluster.objects.update(effects_due_since=Reservation.objects.get().revision)
    Reservation.objects.update(created_at=timezone.now() - timedelta(minutes=5))
    effects = ready(probe).json()["components"]["effects"]
    assert (effects["ok"], effects["ageSeconds"] >= 300) == (False, True)
    assert f"{age}30" in probe("GET", "/metrics").content.decode()


def test_undecided_pods_are_counted(probe: Api, operator: Api) -> None:
    operator("POST", "workloads/", POD, kind="application/yaml", status=202)
    assert ready(probe).json()["status"] == "ok"
    Pod.objects.update(created_at=timezone.now() - timedelta(minutes=5))
    assert ready(probe).json()["components"]["scheduler"]["ok"] is False


def test_progressing_long_queue_is_healthy(probe: Api, operator: Api, decided: str) -> None:
    operator("POST", "workloads/", POD.replace("web", "new"), kind="application/yaml", status=202)
    Pod.objects.filter(name="new").update(created_at=timezone.now() - timedelta(minutes=5))
    assert Decision.objects.exists()
    assert ready(probe).json()["components"]["scheduler"]["ok"] is True


def test_pods_that_another_scheduler_decides_are_not_late(probe: Api, operator: Api) -> None:
    operator("POST", "workloads/", POD, kind="application/yaml", status=202)
    Pod.objects.update(created_at=timezone.now() - timedelta(minutes=5))
    Connection.objects.create(cluster=Pod.objects.get().cluster, shadow_of="default-scheduler")
    assert ready(probe).json()["components"]["scheduler"]["ok"] is True
    assert "hetsched_due_pods{" not in probe("GET", "/metrics").content.decode()


def test_queue_without_a_worker_is_reported(probe: Api) -> None:
    Figure.objects.filter(labels='["io"]').update(at=timezone.now() - timedelta(minutes=5))
    workers = ready(probe).json()["components"]["workers"]
    assert (workers["ok"], workers["ageSeconds"] >= 300) == (False, True)
    assert "io" in workers["detail"]
    Figure.objects.all().delete()
    assert "io, schedule" in ready(probe).json()["components"]["workers"]["detail"]


def test_unserved_decision_queue_is_unready_after_10_seconds(probe: Api) -> None:
    served = Figure.objects.filter(labels='["schedule"]')
    served.update(at=timezone.now() - timedelta(seconds=8))
    assert ready(probe).status_code == 200
    served.update(at=timezone.now() - timedelta(seconds=12))
    answer = ready(probe)
    assert (answer.status_code, answer.json()["status"]) == (503, "unready")
    assert answer.json()["components"]["schedule-queue"]["ageSeconds"] >= 12
    served.delete()
    assert ready(probe).status_code == 503
    # A web process still serves users and agents: its own probe does not take it out of service.
    assert probe("GET", "/readyz?component=web", status=200).json()["ok"] is True


def test_web_process_without_a_database_is_unready(probe: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(health._CHECKS, "database", away)
    assert probe("GET", "/readyz?component=web", status=503).json()["detail"] == "database"


def test_component_is_queried_alone(probe: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(health._CHECKS, "broker", away)
    assert probe("GET", "/readyz?component=broker", status=503).json()["detail"] == "OSError"
    assert probe("GET", "/readyz?component=workers", status=200).json()["ok"] is True
    assert probe("GET", "/readyz?component=mood", status=404).json()["code"] == "NotFound"


def test_warm_standby_is_reported_while_it_runs(probe: Api) -> None:
    followed("live")
    followed("other")
    for name in ("live", "deleted"):
        counters.add(metric_names.STANDBY, name)
    counters.flush()
    expected = "2 of 2 live clusters are watched, 1 with a warm standby"
    assert probe("GET", "/readyz?component=watch", status=200).json()["detail"] == expected
    assert figures_of(probe)["hetsched_standby_reports_total", (("cluster", "live"),)] == 1
    Figure.objects.filter(name=metric_names.STANDBY.name).update(at=timezone.now() - timedelta(seconds=21))
    ended = probe("GET", "/readyz?component=watch", status=200).json()["detail"]
    assert ended == "2 of 2 live clusters are watched"


def test_live_cluster_without_an_informer_is_reported(probe: Api) -> None:
    live = followed("live")
    followed("other")
    assert probe("GET", "/readyz?component=watch", status=200).json()["detail"] == "2 of 2 live clusters are watched"
    Sync.objects.filter(cluster=live).update(alive_at=timezone.now() - timedelta(minutes=5))
    assert probe("GET", "/readyz?component=watch", status=503).json()["ageSeconds"] >= 300
    behind = probe("GET", "/readyz?component=watch&cluster=live", status=503)
    assert probe("GET", "/readyz?component=watch&cluster=other", status=200)
    for name in ("lab", "nothing"):  # the response does not reveal which clusters exist
        assert probe("GET", f"/readyz?component=watch&cluster={name}", status=503).content == behind.content
    document = ready(probe).json()
    assert document["status"] == "degraded"
    assert {name: cluster["inStep"] for name, cluster in document["clusters"].items()} == {
        "lab": True, "live": False, "other": True,
    }  # fmt: skip


def test_token_that_was_not_renewed_is_reported_without_its_name(probe: Api) -> None:
    live = followed("live")
    tokens = [StoredToken("connection", "ns/secret-account", "2030-01-01T00:00:00Z", Message("403 Forbidden"))]
    tokens.append(StoredToken("discovery", "ns/other", "2030-01-01T00:00:00Z"))
    Connection.objects.filter(cluster=live).update(stored_tokens=tuple(tokens))
    answer = ready(probe)
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
    component = answer.json()["components"]["tokens"]
    assert component["ok"] is False
    assert component["detail"].startswith("1 of 2 stored tokens were not renewed: run `hetsched cluster test`")
    assert "secret-account" not in answer.content.decode()
    Connection.objects.filter(cluster=live).update(stored_tokens=tuple(tokens[1:]))
    assert probe("GET", "/readyz?component=tokens", status=200).json()["ok"] is True


def followed(name: str) -> Cluster:
    cluster = Cluster.objects.create(name=name, kind=ClusterKind.KUBERNETES)
    now = timezone.now()
    Connection.objects.create(
        cluster=cluster, follower_epoch=3, follower_id="watch/1", follower_until=now + timedelta(seconds=10)
    )
    for resource, objects in (("pods", 70), ("nodes", 5)):
        Sync.objects.create(
            cluster=cluster, resource=resource, epoch=3, synced_at=now, alive_at=now, objects_count=objects
        )
    return cluster


def test_unknown_http_methods_share_one_label(probe: Api) -> None:
    for method in ("FROB", "BREW"):
        probe("GET", "nodes/")
        probe(method, "nodes/", status=405)
    counted = {sample.labels["method"] for metric in REQUESTS.collect() for sample in metric.samples}
    assert "other" in counted
    assert not counted & {"FROB", "BREW"}


def figures_of(caller: Api) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    counters.flush()  # as at the end of a task
    text = caller("GET", "/metrics", status=200).content.decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_figures_for_prometheus(probe: Api, decided: str) -> None:
    found = figures_of(probe)
    lab = ("cluster", "lab")
    assert found["hetsched_nodes", (lab, ("ready", "true"))] == 2
    assert found["hetsched_pods", (lab, ("state", "placed"))] == 1
    assert found["hetsched_pods", (lab, ("state", "never-fits"))] == 1
    assert found["hetsched_cards", (lab,)] == 2
    # 500m of 16 CPUs
    assert found["hetsched_requested_ratio", (lab, ("resource", "cpu"))] == 0.5 / 16
    assert found["hetsched_decisions_total", (lab, ("verdict", "placed"))] == 1
    assert found["hetsched_decisions_total", (lab, ("verdict", "never-fits"))] == 1
    reasons = [(dict(labels)["plugin"], count) for (name, labels), count in found.items() if "reasons" in name]
    assert reasons == [("resource-fit", 1)]
    assert found["hetsched_decision_seconds_count", (lab,)] == 2
    assert found["hetsched_decision_seconds_bucket", (lab, ("le", "+Inf"))] == 2
    assert found["hetsched_batches_total", (lab, ("outcome", "recorded"))] == 1
    assert found["hetsched_lease_held", (lab, ("lease", "leader"))] == 0
    assert found["hetsched_lease_epoch", (lab, ("lease", "leader"))] == 1
    assert 0 <= found["hetsched_canary_age_seconds", (("queue", "io"),)] < 60


def test_figures_of_a_live_cluster(probe: Api) -> None:
    live = followed("live")
    Sync.objects.filter(cluster=live, resource="pods").update(
        alive_at=timezone.now() - timedelta(minutes=5), failures=4
    )
    found = figures_of(probe)
    where, pods = ("cluster", "live"), (("cluster", "live"), ("resource", "pods"))
    assert found["hetsched_watch_age_seconds", pods] >= 300
    assert found["hetsched_watch_objects", pods] == 70
    assert found["hetsched_watch_failures", pods] == 4
    assert found["hetsched_watch_in_step", (where,)] == 0
    assert found["hetsched_lease_holder", (where, ("holder", "watch/1"), ("lease", "follower"))] == 1


def test_invariants_are_checked_and_violations_are_counted(probe: Api, decided: str) -> None:
    assert canary.check() == 0
    found = figures_of(probe)
    assert found["hetsched_invariant_violations", (("id", "I8"),)] == 0
    assert found["hetsched_invariants_age_seconds", ()] < 60
    Reservation.objects.all().delete()  # a pod without a reservation, and load columns with one
    assert canary.check() >= 2
    found = figures_of(probe)
    assert found["hetsched_invariant_violations", (("id", "I8"),)] >= 1
    assert found["hetsched_invariant_violations", (("id", "I2"),)] >= 1
    assert found["hetsched_invariant_violations", (("id", "I1"),)] == 0


def test_reservations_and_leaked_ones_are_counted(probe: Api, decided: str) -> None:
    lab = ("cluster", "lab")
    found = figures_of(probe)
    counts = [found["hetsched_reservations", (lab, ("state", state))] for state in ("active", "quarantined", "leaked")]
    assert counts == [1, 0, 0]
    Node.objects.filter(pk=Reservation.objects.get(active=True).node_id).update(gone=True)
    assert figures_of(probe)["hetsched_reservations", (lab, ("state", "quarantined"))] == 1
    for state in ("binding", "cancelled"):  # a pod that ended and released nothing
        Pod.objects.filter(state__in=["placed", "binding"]).update(state=state)
    assert figures_of(probe)["hetsched_reservations", (lab, ("state", "leaked"))] == 1


def test_write_of_a_stale_leader_is_counted(probe: Api, decided: str) -> None:
    cluster = Cluster.objects.get(name="lab")
    with pytest.raises(Conflict), transaction.atomic():
        advance(cluster.pk, revision=cluster.revision, epoch=cluster.leader_epoch - 1)
    assert figures_of(probe)["hetsched_stale_epoch_rejected_total", (("cluster", "lab"),)] == 1


def test_broken_audit_trail_is_exported_as_a_metric(probe: Api) -> None:
    assert figures_of(probe)["hetsched_audit_chain_ok", ()] == 1
    AuditSeal.objects.create(
        first_entry=1, last_entry=1, entries=1, digest="x", verified_at=timezone.now(), problem="it was changed"
    )
    assert figures_of(probe)["hetsched_audit_chain_ok", ()] == 0


def test_durations_fall_into_buckets(probe: Api) -> None:
    for seconds in (0.004, 0.005, 0.3, 99.0):
        counters.observe(metric_names.BINDING_SECONDS, seconds, "live", "bound")
    found = figures_of(probe)
    labels = (("cluster", "live"), ("outcome", "bound"))
    # Bounds are inclusive: 0.004 and 0.005 are at most 0.005; 0.3 is at most 0.5; 99 is above every bound.
    buckets = {bound: found["hetsched_binding_seconds_bucket", tuple(sorted((*labels, ("le", bound))))]
               for bound in ("0.0025", "0.005", "0.25", "0.5", "30.0", "+Inf")}  # fmt: skip
    assert buckets == {"0.0025": 0, "0.005": 2, "0.25": 2, "0.5": 3, "30.0": 3, "+Inf": 4}
    assert found["hetsched_binding_seconds_sum", labels] == pytest.approx(0.004 + 0.005 + 0.3 + 99.0)
    counters.observe(metric_names.BINDING_SECONDS, 1.0, "live", "bound")
    assert figures_of(probe)["hetsched_binding_seconds_count", labels] == 5


def test_counts_wait_for_a_database_that_is_away(probe: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    counters.add(metric_names.BATCHES, "lab", "lost")
    with monkeypatch.context() as patch:
        patch.setattr(counters, "_write", failing)
        counters.flush()
    counters.add(metric_names.BATCHES, "lab", "lost")
    assert figures_of(probe)["hetsched_batches_total", (("cluster", "lab"), ("outcome", "lost"))] == 2


def failing(*_: Any, **__: Any) -> None:
    raise OperationalError("away")


def test_figures_are_for_this_machine_and_for_known_scrapers(
    api: Callable[..., Api], cluster: Any, settings: Any
) -> None:
    far = {"REMOTE_ADDR": "10.0.0.7"}
    anonymous = Api().client
    assert anonymous.get("/metrics").status_code == 200
    assert anonymous.get("/metrics", REMOTE_ADDR="::1").status_code == 200
    refused = anonymous.get("/metrics", **far)
    assert (refused.status_code, refused.json()["code"]) == (401, "NotAuthenticated")
    # A proxy on this machine forwards the request of another client.
    assert anonymous.get("/metrics", headers={"x-forwarded-for": "10.0.0.7"}).status_code == 401
    assert api("viewer").client.get("/metrics", **far).status_code == 200
    assert api("agent").client.get("/metrics", **far).status_code == 403
    assert Api("hs_" + "0" * 64).client.get("/metrics").status_code == 401
    # No token is set, so an empty one is no token.
    assert anonymous.get("/metrics", headers={"authorization": "Bearer "}, **far).status_code == 401
    settings.HETSCHED_METRICS_TOKEN = "a long enough metrics token"
    assert Api("a long enough metrics token").client.get("/metrics", **far).status_code == 200
    assert Api("a long enough metrics toke").client.get("/metrics", **far).status_code == 401


def test_figures_name_no_node_no_pod_and_no_person(probe: Api, decided: str) -> None:
    text = probe("GET", "/metrics").content.decode()
    for name in ("n1", "web", "service-operator"):
        assert f'"{name}"' not in text
    assert 'route="api/v1/workloads/"' in text
