"""A failing part of the sweep does not stop the other parts and the other clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError

from hetsched.placement import dispatch
from tests.builders import a_node, a_pod
from tests.situations import a_cluster, submitted
from workers import sweep

pytestmark = pytest.mark.django_db


def _failing(error: Exception, cluster_id: int) -> Callable[..., None]:
    def fail(given: Any, *_: Any) -> None:
        if given == cluster_id:
            raise error

    return fail


def test_other_parts_and_clusters_are_processed(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = [a_cluster(a_node("n"), name=name) for name in ("a", "b")]
    for cluster in clusters:
        submitted(cluster, a_pod(f"p-{cluster.name}"))
    woken: list[tuple[Any, str]] = []
    monkeypatch.setattr(dispatch, "wake", lambda row_id, task=dispatch.SCHEDULE: woken.append((row_id, task)))
    monkeypatch.setattr(sweep, "apply_samples", _failing(ValueError("a bug"), clusters[0].pk))
    assert sweep.run()["woken"] == len(clusters)
    assert {(cluster.pk, dispatch.SCHEDULE) for cluster in clusters} <= set(woken)


def test_database_outage_stops_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = a_cluster(a_node("n"), name="a")
    monkeypatch.setattr(sweep, "apply_samples", _failing(OperationalError("away"), cluster.pk))
    with pytest.raises(OperationalError):
        sweep.run()
