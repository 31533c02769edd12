"""The first screen embeds the document of its live topic at its revision, in columns."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hetsched.contracts.objects.cluster import ClusterContent
from hetsched.contracts.times import rfc3339
from hetsched.inventory.actions import cordon
from hetsched.inventory.maintenance import set_maintenance
from hetsched.journal.audit import SYSTEM
from hetsched.journal.publish import revision_of
from hetsched.placement.actions import import_cluster, submit
from hetsched.placement.queries import topics
from tests.builders import a_node, a_pod
from tests.builtins import builtin_policies
from workers.schedule import run as schedule

pytestmark = pytest.mark.django_db


def unpacked(columns: dict[str, Any]) -> dict[str, Any]:
    """Convert columns to tiles, as the page's script does."""
    groups, isas, installed, maintenance = (columns.pop(key) for key in ("groups", "isas", "installed", "maintenance"))
    tiles = {}
    for at, one in enumerate(zip(*columns.values(), strict=True)):
        values = dict(zip(columns, one, strict=True))
        family, pool = groups[values["group"]]
        ratios = {key: values[key] / 10_000 for key in ("cpu", "memory", "gpu") if values[key] >= 0}
        isa = {"isa": isas[values["isa"]]} if values["isa"] >= 0 else {}
        state = {"ready": values["state"] < 2, "cordoned": values["state"] % 2 == 1}
        rest = {key: values[key] for key in ("name", "cards", "pods")}
        rest["cardsInstalled"] = installed.get(str(at), values["cards"])
        if str(at) in maintenance:
            rest["maintenance"] = maintenance[str(at)]
        tiles[values["name"]] = {**rest, "family": family, "pool": pool, **state, **isa, **ratios}
    return tiles


def test_columns_are_the_tiles_of_the_topic(viewer: Client) -> None:
    nodes = (
        a_node("a").isa("x86-64-v3").gpus(3).labelled({"hetsched.io/pool": "big"}),
        a_node("b").isa("rv64gcv").not_ready(),
        a_node("c").having(allocatable={}),
        a_node("d").cpu("3"),
    )
    content = ClusterContent(nodes=tuple(node.build() for node in nodes))
    builtin_policies()
    cluster = import_cluster(content, name="lab", actor=SYSTEM)
    submit(cluster, [a_pod("p").cpu("1").build(), a_pod("q").gpu(1).build()], actor=SYSTEM)
    schedule(cluster.pk)
    cordon(cluster, "d", actor=SYSTEM, reason="work")
    set_maintenance(cluster, "a", "card", "2", rfc3339(timezone.now() + timedelta(hours=4)), actor=SYSTEM, reason="fan")
    page = viewer.get("/?cluster=lab").content.decode()
    found = re.search(r'<script id="initial" type="application/json">(.*?)</script>', page)
    assert found is not None
    initial = json.loads(found[1])
    snapshot = topics.snapshot("cluster:lab")
    assert initial["revisions"]["cluster"] == snapshot.revision
    assert initial["revisions"]["decisions"] == revision_of(topics.DECISIONS)
    assert {**initial["cluster"], "nodes": unpacked(initial["columns"])} == json.loads(json.dumps(snapshot.data))
